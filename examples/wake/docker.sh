#!/usr/bin/env bash
# Runs the waker on a host with Docker: `docker start a2a-<workspace>` for each request of the gateway.
#   GATEWAY: the gateway's public URL.   ORIGIN: scheme, host and port of this waker, as the gateway calls it.
set -euo pipefail
cd "$(dirname "$0")"
: "${GATEWAY:?the public URL of the gateway, such as https://gateway.example.com}"
: "${ORIGIN:?scheme, host and port of this waker, such as http://10.0.3.1:8081}"
exec python3 waker.py --gateway "$GATEWAY" --origin "$ORIGIN" --listen "${LISTEN:-0.0.0.0:${ORIGIN##*:}}" docker a2a-
