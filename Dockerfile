# Build: a static program, on a system whose C library is musl.
FROM rust:1-alpine AS build
RUN apk add --no-cache build-base ca-certificates-bundle cmake linux-headers perl
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY config config
COPY packaging packaging
COPY pages pages
COPY src src
COPY crates crates
COPY benches benches
COPY examples examples
# Kernels of arm64 have pages of 4 to 64 KiB: jemalloc takes those that are no larger than it was built for.
RUN [ "$(uname -m)" != aarch64 ] || export JEMALLOC_SYS_WITH_LG_PAGE=16; \
    cargo build --locked --profile dist --bin a2a-gateway
# The root folder of the image: the program, certificates to verify agents with, its user, its configuration.
RUN mkdir -p /image/usr/local/bin /image/etc/ssl/certs /image/etc/a2a-gateway /state \
    && cp target/dist/a2a-gateway /image/usr/local/bin/ \
    && ! readelf --program-headers /image/usr/local/bin/a2a-gateway | grep -q INTERP \
    && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    && cp config/container.toml /image/etc/a2a-gateway/config.toml \
    && echo 'a2a:x:10001:10001::/var/lib/a2a-gateway:/' > /image/etc/passwd \
    && echo 'a2a:x:10001:' > /image/etc/group

# The program alone, for releases: docker buildx build --target program --output FOLDER .
FROM scratch AS program
COPY --from=build /image/usr/local/bin/a2a-gateway /a2a-gateway

# Run: no shell, no package manager, no other program. All but the state may be read-only.
FROM scratch
COPY --from=build /image /
COPY --from=build --chown=10001:10001 /state /var/lib/a2a-gateway
ENV PATH=/usr/local/bin
USER 10001:10001
WORKDIR /var/lib/a2a-gateway
VOLUME /var/lib/a2a-gateway
EXPOSE 8080 9090
# `health` asks the admin listener's /readyz/traffic: no curl in the image, and no restart for a store that is away.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["a2a-gateway", "health", "--traffic", "--url", "http://127.0.0.1:9090"]
ENTRYPOINT ["a2a-gateway"]
CMD ["serve", "--config", "/etc/a2a-gateway/config.toml"]
