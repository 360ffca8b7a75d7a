# syntax=docker/dockerfile:1
# The controller: static, not root, for every platform: docker buildx build --platform linux/amd64,linux/arm64 .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src

# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download

COPY main.go ./
COPY api/ api/
COPY config/policy/ config/policy/
COPY controllers/ controllers/
COPY internal/ internal/

ARG TARGETOS
ARG TARGETARCH
ARG VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /manager ./main.go

FROM gcr.io/distroless/static:nonroot
LABEL org.opencontainers.image.source=https://github.com/distlock-dev/distlock \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
