#!/bin/sh
# with-lock.sh LOCK COMMAND...: runs a command while it holds a lock, with kubectl and nothing else. The command finds
# DISTLOCK_NAME and DISTLOCK_FENCING_TOKEN in its environment. DISTLOCK_WAIT is how long to wait, such as 10m.
#
# A claim needs no renewal: the lock stays held until the claim is deleted, also when this machine dies. Then somebody
# has to delete it. `kubectl distlock run` holds a lease instead, which ends by itself, and stops the command when the
# hold is lost or revoked.
set -eu
lock=$1
shift
claim="$lock-$(hostname | tr -cd a-z0-9)-$$-$(date +%s)" # of our own choosing: known also when a reply is lost

trap 'kubectl delete lockclaim "$claim" --ignore-not-found >/dev/null' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

kubectl create -f - >/dev/null <<YAML
apiVersion: distlock.dev/v1alpha1
kind: LockClaim
metadata: {name: $claim}
spec: {lockName: $lock}
YAML
kubectl wait --for=condition=Granted --timeout="${DISTLOCK_WAIT:-10m}" "lockclaim/$claim" >/dev/null

DISTLOCK_NAME=$lock
DISTLOCK_FENCING_TOKEN=$(kubectl get lockclaim "$claim" -o jsonpath='{.status.fencingToken}')
export DISTLOCK_NAME DISTLOCK_FENCING_TOKEN
"$@"
