# syntax=docker/dockerfile:1

FROM node:24-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY src src
COPY elements elements
COPY scripts scripts
RUN npm run build

FROM node:24-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --no-audit --no-fund && npm cache clean --force

FROM node:24-slim
ENV NODE_ENV=production HOST=0.0.0.0 PORT=8080 DATA_DIR=/data
WORKDIR /app
# The gateway's own files belong to root: the process that runs them cannot change them.
COPY package.json ./
COPY --from=dependencies /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY rego rego
COPY fonts fonts
COPY elements/console.js elements/
# The user `node` by its number: Kubernetes cannot tell of a name whether it is root (`runAsNonRoot`).
RUN install -d -o 1000 -g 1000 -m 0700 /data
VOLUME /data
USER 1000:1000
EXPOSE 8080
# SIGTERM drains: readiness fails for DRAIN_DELAY_MS, then open requests have DRAIN_MS to end; 8 s later the process is gone.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/health/live`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# As many threads for garbage collection as there are cores to spare. Otherwise four would compete with the gateway on two cores.
CMD ["node", "--v8-pool-size=0", "dist/main.js"]
