# This file makes two images: `operator` (Python only) and `engine` (Python, Java, Spark). Both run as uid 185, or as any
# other that the platform gives them, with a read-only root file system. What they write goes to /tmp and to mounted
# volumes.
#   docker build --target operator -t logkeep-operator .
#   docker build --target engine -t logkeep-engine .
# Dependencies are installed before the code is copied, so a change of the code rebuilds one small layer. A machine may
# have wheels or a certificate bundle of its own, mounted into the build: the optional build arguments PIP_FIND_LINKS
# and PIP_CERT name them; CARGO_HTTP_CAINFO names the bundle for the crates of the kernel.
ARG BASE=debian:bookworm-slim
# The code goes into these stages. The test bed names images instead that it has kept, and so skips the stages before.
ARG OPERATOR_BASE=operator-base
ARG ENGINE_BASE=engine-base
# The compiled kernel comes from this stage, or from an image that holds logkeep_kernel.abi3.so and nothing else.
ARG KERNEL=kernel-build

# This stage takes the requirements of each image from pyproject.toml. Only if these change, packages are installed
# again.
FROM ${BASE} AS requirements
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml docker/requirements.py /build/
RUN python3 /build/requirements.py /build/pyproject.toml operator > /build/operator.txt \
    && python3 /build/requirements.py /build/pyproject.toml engine > /build/engine.txt

FROM ${BASE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv --without-pip /opt/logkeep

FROM packages AS operator-packages
ARG PIP_FIND_LINKS
ARG PIP_CERT
COPY requirements.lock /build/
COPY --from=requirements /build/operator.txt /build/
RUN python3 -m pip --python /opt/logkeep/bin/python install -c /build/requirements.lock -r /build/operator.txt

FROM packages AS engine-packages
ARG PIP_FIND_LINKS
ARG PIP_CERT
COPY requirements.lock /build/
COPY --from=requirements /build/engine.txt /build/
COPY docker/trim.sh /build/
RUN python3 -m pip --python /opt/logkeep/bin/python install -c /build/requirements.lock -r /build/engine.txt \
    && sh /build/trim.sh /opt/logkeep/lib/python3.11/site-packages

# The compiler and the crates stay in this stage.
FROM ${BASE} AS kernel-build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates cargo-web rustc-web \
    && rm -rf /var/lib/apt/lists/*
ARG CARGO_HTTP_CAINFO
COPY kernel /build/kernel
RUN cd /build/kernel && PYO3_NO_PYTHON=1 cargo build --locked --release --package logkeep-kernel \
    && mv target/release/liblogkeep_kernel.so /logkeep_kernel.abi3.so

FROM ${KERNEL} AS kernel

FROM ${BASE} AS python
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 tini && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 185 logkeep && useradd --uid 185 --gid 185 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin logkeep
# USER: Python asks it for the name of a user that the platform has chosen, and that the passwd file does not have.
ENV PATH=/opt/logkeep/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp USER=logkeep LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM python AS operator-base
COPY --from=operator-packages /opt/logkeep /opt/logkeep

FROM python AS engine-base
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update && apt-get install -y --no-install-recommends libnss-wrapper openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java
COPY --from=engine-packages /opt/logkeep /opt/logkeep
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/logkeep/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/logkeep/bin/python3 \
    PYSPARK_DRIVER_PYTHON=/opt/logkeep/bin/python3 \
    LOGKEEP_CLASS_ARCHIVE=/opt/logkeep/spark.jsa
# With this archive of classes Java starts in half the time.
COPY docker/classes.py /build/
RUN python3 /build/classes.py "$LOGKEEP_CLASS_ARCHIVE"

# The code lies on the path as it is: nothing is resolved any more.
FROM ${OPERATOR_BASE} AS operator
COPY engine/logkeep_engine /opt/code/logkeep_engine
COPY operator/logkeep_operator /opt/code/logkeep_operator
COPY docker/logkeep-operator /usr/local/bin/
RUN python3 -m compileall -q /opt/code
ENV PYTHONPATH=/opt/code
USER 185
WORKDIR /tmp
ENTRYPOINT ["tini", "-s", "--", "logkeep-operator"]

FROM ${ENGINE_BASE} AS engine
COPY docker/entrypoint.sh docker/logkeep docker/kubectl-logkeep /usr/local/bin/
COPY engine/logkeep_engine /opt/code/logkeep_engine
COPY engine/pyspark_logkeep /opt/code/pyspark_logkeep
COPY --from=kernel /logkeep_kernel.abi3.so /opt/code/
RUN python3 -m compileall -q /opt/code
ENV PYTHONPATH=/opt/code
USER 185
WORKDIR /tmp
ENTRYPOINT ["entrypoint.sh"]
