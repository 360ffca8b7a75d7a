package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// claimEnv is what acquire sets for release.
const claimEnv = "DISTLOCK_CLAIM"

func (p *plugin) releaseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "release [CLAIM]",
		Short: "Give back a lock that acquire took",
		Long: fmt.Sprintf(`Give back a lock that acquire took, or its place in the queue: the LockClaim is deleted, and the lock goes to the next.

CLAIM is what acquire printed as DISTLOCK_CLAIM, which is also the default. It names one claim exactly, so that releasing it
twice does no harm, also when another claim has its name by then. The name of a claim does too, if acquire made it; any
other claim is left alone.

Exit codes: 0 the claim is gone; %d it had lost the lock before, so others may have held it in between.`, exitLost),
		Example: examples(`
			kubectl distlock release "$DISTLOCK_CLAIM"
			# One that is left over from a script that died
			kubectl distlock release ledger-x7k2pq9d`),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.completeClaims,
		RunE: p.verb(func(ctx context.Context, args []string) error {
			claim := os.Getenv(claimEnv)
			if len(args) > 0 {
				claim = args[0]
			}
			return p.release(ctx, claim)
		}),
	}
}

func (p *plugin) release(ctx context.Context, claim string) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	name, uid := claim, ""
	switch parts := strings.Split(claim, "/"); {
	case claim == "":
		return usageError("CLAIM: missing, and %s is not set: give what acquire printed", claimEnv)
	case len(parts) == 3:
		c.namespace, name, uid = parts[0], parts[1], parts[2]
	case len(parts) != 1:
		return usageError("CLAIM: %q is neither what acquire printed nor the name of a LockClaim", claim)
	}
	there := &v1alpha1.LockClaim{}
	err = c.Get(ctx, c.key(name), there)
	switch {
	case apierrors.IsNotFound(err):
		p.say("there is no LockClaim %q in namespace %q: nothing to release", name, c.namespace)
		return nil
	case err != nil:
		return err
	case uid != "" && uid != string(there.UID):
		p.say("LockClaim %q is gone already; another one by its name is left alone", name)
		return nil
	case there.Annotations[attemptAnnotation] == "":
		return exitWith(exitFailed, "LockClaim %q was not made by kubectl distlock acquire: if it is yours, kubectl delete -n %s lockclaim %s",
			name, c.namespace, name)
	}
	if err := c.deleteClaim(ctx, there); err != nil {
		return err
	}
	if condition := grantedCondition(there); condition != nil && condition.Reason == v1alpha1.ReasonLost {
		return exitWith(exitLost, "LockClaim %q is gone, and had lost DistLock %q before: others may have held it meanwhile", name, there.Spec.LockName)
	}
	return nil
}
