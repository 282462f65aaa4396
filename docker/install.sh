#!/bin/sh
# Installs the packages of a part of the lock into /opt/logkeep: `install.sh operator`. pip, and the packages that make
# wheels, are mounted from the stage `packages` at /tools, so that they are not in the image.
set -eu

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
pip=/tools/usr/lib/python3/dist-packages/pip
# Wheels that are made here are not compressed: they are unpacked at once, and pyspark's jars do not get smaller.
printf '[bdist_wheel]\ncompression = stored\n' >/tmp/stored.cfg
DIST_EXTRA_CONFIG=/tmp/stored.cfg /tools/opt/build/bin/python $pip wheel --no-deps --require-hashes --use-pep517 \
  --no-build-isolation --wheel-dir /tmp/wheels -r "/build/$1.txt"
python3 -m venv --without-pip /opt/logkeep
/opt/logkeep/bin/python $pip install --no-index --no-deps /tmp/wheels/*.whl
/opt/logkeep/bin/python $pip check
rm -r /tmp/wheels /tmp/stored.cfg
