# Build: the toolchain and what Pingora's C dependencies need.
FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake make gcc && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY config config
COPY pages pages
COPY src src
COPY crates crates
COPY benches benches
COPY examples examples
RUN cargo build --locked --profile dist --bin a2a-gateway

# Run: the binary, certificates to verify agents with, nothing else.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/a2a-gateway --create-home a2a
COPY --from=build /src/target/dist/a2a-gateway /usr/local/bin/a2a-gateway
COPY config/container.toml /etc/a2a-gateway/config.toml
USER a2a
WORKDIR /var/lib/a2a-gateway
VOLUME /var/lib/a2a-gateway
EXPOSE 8080 9090
# `health` asks the admin listener's /readyz/traffic: no curl in the image, and no restart for a store that is away.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["a2a-gateway", "health", "--traffic", "--url", "http://127.0.0.1:9090"]
ENTRYPOINT ["a2a-gateway"]
CMD ["serve", "--config", "/etc/a2a-gateway/config.toml"]
