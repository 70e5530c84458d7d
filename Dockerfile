# The service alone: no torch, no lightning. Every file that pip installs has its hash in
# service/requirements.lock.
#
#     docker build --tag zeus-service .
#     docker run --publish 8765:8765 --env ZEUS_BSO_TOKEN=... --volume zeus:/var/lib/zeus-service zeus-service
#
# It runs without a writable root file system: --read-only --tmpfs /tmp
#
# The base image is named by its tag. To build on the same files each time, name it by digest:
# --build-arg PYTHON_IMAGE=python:3.11-slim-trixie@sha256:...; docs/deploy.md says where to find it.

ARG PYTHON_IMAGE=python:3.11-slim-trixie

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY service/requirements.lock service/requirements.lock
# The lock names every package. Without --no-deps, some releases of pip would want a newer pydantic for
# apiflask's pydantic[email], and find no hash for it.
RUN python -m venv /opt/zeus \
    && /opt/zeus/bin/pip install --no-cache-dir --no-deps --require-hashes -r service/requirements.lock
COPY LICENSE ./
COPY service service
RUN /opt/zeus/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation ./service \
    && /opt/zeus/bin/pip check

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --home-dir /var/lib/zeus-service --create-home zeus
COPY --from=build /opt/zeus /opt/zeus
ENV PATH=/opt/zeus/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/var/lib
USER 10001
WORKDIR /var/lib/zeus-service
VOLUME /var/lib/zeus-service
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/healthz', timeout=4)"]
ENTRYPOINT ["zeus-service"]
CMD ["serve", "--bind", "0.0.0.0:8765"]
