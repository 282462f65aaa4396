# This file makes two images: `operator` (Python only) and `engine` (Python, Java, Spark). Both run as uid 185, or as any
# other that the platform gives them, with a read-only root file system. What they write goes to /tmp and to mounted
# volumes.
#   docker build --target operator -t logkeep-operator .
#   docker build --target engine -t logkeep-engine .
# Dependencies are installed before the code is copied, so a change of the code rebuilds one small layer. Each is fetched
# by its hash in requirements.lock, what builds it included. A machine may have packages or a certificate bundle of its
# own, mounted into the build: the optional build arguments PIP_FIND_LINKS and PIP_CERT name them; CARGO_HTTP_CAINFO names
# the bundle for the crates of the kernel.
#
# Each image has the list of what it holds at /usr/share/logkeep/sbom.cdx.json, in CycloneDX's format. This writes the
# list alone into the folder dist:
#   docker build --target engine-sbom --output dist .

# Debian 12 as of August 2026, for all platforms. Packages newer than it come from Debian when the image is built.
ARG BASE=debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241
# The code goes into these stages. The test bed names images instead that it has kept, and so skips the stages before.
ARG OPERATOR_BASE=operator-base
ARG ENGINE_BASE=engine-base
# The compiled kernel comes from this stage, or from an image that holds logkeep_kernel.abi3.so and crates.txt, the list
# of what is in it.
ARG KERNEL=kernel-build

FROM ${BASE} AS python
RUN apt-get update && apt-get upgrade -y && apt-get install -y --no-install-recommends ca-certificates python3 tini && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 185 logkeep && useradd --uid 185 --gid 185 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin logkeep
# USER: Python asks it for the name of a user that the platform has chosen, and that the passwd file does not have.
ENV PATH=/opt/logkeep/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp USER=logkeep LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# pip stays in this stage, and so does /opt/build, which makes wheels of packages that are published as sources only and
# lists the contents of images.
FROM python AS pip
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*

# This stage takes the requirements of each image from the lock. Only if these change, packages are installed again.
FROM pip AS requirements
COPY pyproject.toml requirements.lock docker/requirements.py /build/
RUN for part in build operator engine; do \
      python3 /build/requirements.py /build/pyproject.toml /build/requirements.lock "$part" > "/build/$part.txt" || exit; \
    done

FROM pip AS packages
ARG PIP_FIND_LINKS
ARG PIP_CERT
COPY --from=requirements /build/build.txt /build/
RUN python3 -m venv --without-pip /opt/build && python3 -m pip --python /opt/build/bin/python \
    install --no-deps --require-hashes --use-pep517 --no-build-isolation -r /build/build.txt
# What the next stages copy from here and not from `requirements` lets buildah mount this stage when all of it is cached.
COPY --from=requirements /build/operator.txt /build/engine.txt /build/

FROM python AS operator-base
ARG PIP_FIND_LINKS
ARG PIP_CERT
COPY --from=packages /build/operator.txt /build/
COPY docker/install.sh /build/
RUN --mount=type=bind,from=packages,target=/tools /build/install.sh operator
# Nobody gains rights by a file of the image: none is run as its owner or group.
RUN find / -xdev -perm /6000 -exec chmod ug-s {} +

FROM python AS engine-base
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update && apt-get install -y --no-install-recommends libnss-wrapper openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java
ARG PIP_FIND_LINKS
ARG PIP_CERT
COPY --from=packages /build/engine.txt /build/
COPY docker/install.sh docker/trim.sh /build/
RUN --mount=type=bind,from=packages,target=/tools /build/install.sh engine \
    && sh /build/trim.sh /opt/logkeep/lib/python3.11/site-packages
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/logkeep/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/logkeep/bin/python3 \
    PYSPARK_DRIVER_PYTHON=/opt/logkeep/bin/python3 \
    LOGKEEP_CLASS_ARCHIVE=/opt/logkeep/spark.jsa
# With this archive of classes Java starts in half the time.
COPY docker/classes.py /build/
RUN python3 /build/classes.py "$LOGKEEP_CLASS_ARCHIVE"
RUN find / -xdev -perm /6000 -exec chmod ug-s {} +

# The compiler and the crates stay in this stage.
FROM ${BASE} AS kernel-build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates cargo-web rustc-web \
    && rm -rf /var/lib/apt/lists/*
ARG CARGO_HTTP_CAINFO
COPY kernel /build/kernel
RUN cd /build/kernel && PYO3_NO_PYTHON=1 cargo build --locked --release --package logkeep-kernel \
    && mv target/release/liblogkeep_kernel.so /logkeep_kernel.abi3.so \
    && cargo tree --locked --package logkeep-kernel --edges normal,no-proc-macro --prefix none --format '{p}' > /crates.txt

FROM ${KERNEL} AS kernel

# What each image holds is listed in the image itself, with tools that do not stay in it.
FROM ${OPERATOR_BASE} AS operator-contents
ARG BASE
COPY --from=packages /opt/build /opt/build
COPY docker/sbom.py /build/
COPY engine/logkeep_engine/__init__.py /build/logkeep_engine/
RUN /opt/build/bin/python /build/sbom.py --image logkeep-operator --base "$BASE" \
    --packages /opt/logkeep /sbom.cdx.json

FROM scratch AS operator-sbom
COPY --from=operator-contents /sbom.cdx.json /

FROM ${ENGINE_BASE} AS engine-contents
ARG BASE
COPY --from=packages /opt/build /opt/build
COPY docker/sbom.py /build/
COPY engine/logkeep_engine/__init__.py /build/logkeep_engine/
COPY --from=kernel /crates.txt /build/
RUN /opt/build/bin/python /build/sbom.py --image logkeep-engine --base "$BASE" \
    --packages /opt/logkeep --crates /build/crates.txt /sbom.cdx.json

FROM scratch AS engine-sbom
COPY --from=engine-contents /sbom.cdx.json /

# The code lies on the path as it is: nothing is resolved any more.
FROM ${OPERATOR_BASE} AS operator
COPY --from=operator-sbom /sbom.cdx.json /usr/share/logkeep/
COPY engine/logkeep_engine /opt/code/logkeep_engine
COPY operator/logkeep_operator /opt/code/logkeep_operator
COPY docker/logkeep-operator /usr/local/bin/
RUN python3 -m compileall -q /opt/code
ENV PYTHONPATH=/opt/code
USER 185
WORKDIR /tmp
ENTRYPOINT ["tini", "-s", "--", "logkeep-operator"]

FROM ${ENGINE_BASE} AS engine
COPY --from=engine-sbom /sbom.cdx.json /usr/share/logkeep/
COPY docker/entrypoint.sh docker/logkeep docker/kubectl-logkeep /usr/local/bin/
COPY engine/logkeep_engine /opt/code/logkeep_engine
COPY engine/pyspark_logkeep /opt/code/pyspark_logkeep
# logkeep_engine/conditions is a link to it.
COPY docs/conditions /opt/docs/conditions
COPY --from=kernel /logkeep_kernel.abi3.so /opt/code/
RUN python3 -m compileall -q /opt/code
ENV PYTHONPATH=/opt/code
USER 185
WORKDIR /tmp
ENTRYPOINT ["entrypoint.sh"]
