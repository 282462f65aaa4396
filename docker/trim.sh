#!/bin/sh
# Removes from an installed pyspark what a Logkeep application never loads: it uses RDDs, DataFrames and the Kubernetes scheduler,
# not Hive, YARN, Spark Connect, MLlib, the Scala shell, the R interface or RocksDB state stores. Half the size, and so of the time
# to pull the image. pyspark.zip is pyspark again, not compiled. Kept although its name says Hive: hive-storage-api, which the ORC
# classes of Spark SQL use.
set -eu
cd "$1"
rm -rf examples data R licenses tests python/lib/pyspark.zip
cd jars
for jar in *; do
  case "$jar" in
  hive-storage-api*) ;;
  hive-* | spark-hive* | derby* | datanucleus* | jdo-api* | javax.jdo* | libthrift* | libfb303* | HikariCP* | super-csv* | \
    spark-yarn* | spark-connect* | connect-repl | spark-repl* | scala-compiler* | rocksdbjni* | \
    spark-mllib_* | breeze* | spire* | cats-kernel* | algebra* | arpack* | blas* | lapack* | JTransforms* | JLargeArrays* | \
    *-osx-* | *-windows-* | *-riscv64*) rm -rf "$jar" ;;
  esac
done
