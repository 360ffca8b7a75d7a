#!/usr/bin/env bash
# Writes dist/install.yaml, with the kubectl of the assets, so that everybody's is the same.
set -euo pipefail
cd "$(dirname "$0")/.."

assets=$(go run ./hack/assets/cmd)
mkdir -p dist
trap 'rm -f dist/install.yaml.tmp' EXIT
{
  echo "# DistLock: kubectl apply --server-side -f install.yaml. Generated from config/default by make install-yaml."
  "$assets/kubectl" kustomize config/default
} >dist/install.yaml.tmp
mv dist/install.yaml.tmp dist/install.yaml
