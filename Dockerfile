# NOT BUILT, NOT RUN: no container engine was at hand where this file was written. The same install commands,
# without a container, are what `make run` does.
#
#   docker build -t gateway .
#   docker run -p 8080:8080 -v gateway-data:/var/lib/gateway gateway
#   docker run … -v ./gateway.yaml:/etc/gateway.yaml:ro gateway --config /etc/gateway.yaml

FROM python:3.11-slim

# httpx2 uses the system's trust store, and slim images come without one.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/gateway
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY LICENSE pyproject.toml ./
COPY config ./config
COPY gateway ./gateway
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

RUN useradd --system --home-dir /var/lib/gateway --create-home gateway
USER gateway
# The default store, `disk:.gateway`, is relative: so it lands in the volume.
WORKDIR /var/lib/gateway
VOLUME /var/lib/gateway
EXPOSE 8080

HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]

# An argument given later wins, so all of these can be overridden on the command line.
ENTRYPOINT ["gateway", "serve", "--host", "0.0.0.0"]
