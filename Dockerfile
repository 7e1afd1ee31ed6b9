# Named first so that it can be replaced where no registry is in reach (scripts/build_image.sh).
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1

# The slow layers first; they change only with the lock files.
COPY requirements/ requirements/
COPY scripts/fetch_tables.py scripts/
COPY app/__init__.py app/
COPY app/tokens/__init__.py app/tokens/tokenizer.py app/tokens/
RUN python3 -m venv /opt/steno \
    && /opt/steno/bin/pip install --only-binary :all: --require-hashes -r requirements/run.txt \
    && /opt/steno/bin/python scripts/fetch_tables.py /opt/tables \
    && /opt/steno/bin/pip install --require-hashes --target /opt/build -r requirements/build.txt

COPY pyproject.toml README.md LICENSE ./
COPY alembic/ alembic/
COPY app/ app/
COPY lab/ lab/
# The build backend is locked too, and stays outside the environment that is shipped. pip is not needed after this.
RUN PYTHONPATH=/opt/build /opt/steno/bin/pip install --no-deps --no-build-isolation . \
    && /opt/steno/bin/pip uninstall --yes pip setuptools

FROM ${BASE_IMAGE}
COPY --from=build /opt/steno /opt/steno
COPY --from=build /opt/tables /opt/tables
# Only /data is written to: the root file system may be read-only.
RUN mkdir /data && chown 65532:65532 /data
VOLUME /data
WORKDIR /data
USER 65532:65532
# TIKTOKEN_CACHE_DIR is a folder, not a secret.
# hadolint ignore=DL3064
ENV PATH=/opt/steno/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    STENO_HOME=/data \
    STENO_SERVER__HOST=0.0.0.0 \
    STENO_SERVER__PORT=8080 \
    TIKTOKEN_CACHE_DIR=/opt/tables
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['STENO_SERVER__PORT']), timeout=4); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["steno"]
CMD ["serve"]
