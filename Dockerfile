# NOT BUILT, NOT RUN: no container engine was at hand where this file was written. The same install commands,
# without a container, are what `make run` does; the other lines are checked by tests/surface/test_deploy.py.
#
#   docker build -t gateway .
#   docker run -p 127.0.0.1:8080:8080 -v gateway-data:/var/lib/gateway gateway
#   docker run … -v ./gateway.yaml:/etc/gateway.yaml:ro gateway --config /etc/gateway.yaml
#   docker run … -p 127.0.0.1:8081:8081 -e GATEWAY_ADMIN_HOST=0.0.0.0 -e GATEWAY_ADMIN_TOKEN=… gateway
#   docker run … -v ./state:/var/lib/gateway gateway       # after: mkdir state && sudo chown 10001 state

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

# The user is a number, so that a cluster can see that it is not root. A new volume takes the folder's owner.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/gateway
USER 10001:10001
# The default store, `disk:.gateway`, is relative: so it lands in the volume.
WORKDIR /var/lib/gateway
VOLUME /var/lib/gateway
EXPOSE 8080 8081

# It asks at the port that process 1 was started with, whether by an option or by its settings file.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["refold", "health", "--of-process", "1"]

# Without a shell, so that the gateway is process 1 and gets the signal of `docker stop` itself.
STOPSIGNAL SIGTERM
# An argument given later wins, so all of these can be overridden on the command line.
ENTRYPOINT ["refold", "serve", "--host", "0.0.0.0"]
