#!/bin/sh
# The program: two of it at a time would mix their lines. It knows nothing of the lock but the token.
set -eu
echo "begin $DISTLOCK_FENCING_TOKEN" >> "$REPORTS"
sleep 1
echo "end $DISTLOCK_FENCING_TOKEN" >> "$REPORTS"
