#!/bin/sh
# Removes from the packages in a site-packages folder what a Logkeep application never loads.
set -eu

# It uses RDDs, DataFrames and the Kubernetes scheduler, not Hive, YARN, Spark Connect, MLlib, the Scala shell, the R interface or
# RocksDB state stores. Half the size, and so of the time to pull the image. pyspark.zip is pyspark again, not compiled. Kept although
# its name says Hive: hive-storage-api, which the ORC classes of Spark SQL use.
cd "$1/pyspark"
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

# It uses arrays, batches, compute functions and streams, not Flight or Arrow's own file systems, nor what compiles C++ against Arrow:
# 70 of 170 MB. A wheel has no links, so libarrow_python.so and libarrow_python.so.N.0.0 are copies of libarrow_python.so.N, which
# is what is loaded. Parquet, Dataset and Substrait are not used either, but pyarrow cannot be imported without their libraries.
cd "$1/pyarrow"
rm -rf tests src include includes ./*.pxi ./*.pyx ./*.pxd _pyarrow_cpp_tests* flight.py _flight* libarrow_flight* libarrow_python_flight* \
  _s3fs* libarrow_s3* _azurefs* _gcsfs* _hdfs* libarrow_python*.so libarrow_python*.so.*.*
