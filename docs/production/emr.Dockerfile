# topicberg in the image of an EMR Serverless application, for job runs that compute derived tables.
# BASE is AWS's image of the application's release: see docs/production.md.
# docker build -f docs/production/emr.Dockerfile --build-arg BASE=… -t topicberg-emr:0.1.0 .
ARG BASE
FROM ${BASE}

USER root
WORKDIR /opt/topicberg

# Spark is the release's own: spark-submit puts its pyspark before the one of this environment.
COPY requirements-production.lock ./
RUN python3.11 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements-production.lock

COPY pyproject.toml README.md LICENSE ./
COPY platform platform
COPY assets assets
COPY resources resources
COPY jobs jobs
COPY definitions.py workspace.yaml ./
RUN .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --editable .

ENV TOPICBERG_PROJECT_ROOT=/opt/topicberg
USER hadoop:hadoop
