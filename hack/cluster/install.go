package cluster

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
)

// elsewhere are the kinds of config/default that would run the controller in the
// cluster: here there is no image to run, and the caller runs it as a process.
var elsewhere = regexp.MustCompile(`(?m)^kind: (Deployment|Service)$`)

// Install applies config/default of the source tree, without the Deployment of the
// controller and its Service, and returns when the CRDs are served and the policies
// are in effect. It may be repeated.
func (c *Cluster) Install(ctx context.Context, tree string) error {
	manifests, err := c.Kubectl(ctx, "kustomize", filepath.Join(tree, "config", "default"))
	if err != nil {
		return fmt.Errorf("installing DistLock: %w", err)
	}
	separator := []byte("\n---\n")
	var kept [][]byte
	for document := range bytes.SplitSeq(manifests, separator) {
		if !elsewhere.Match(document) {
			kept = append(kept, document)
		}
	}
	if _, err := c.kubectl(ctx, bytes.Join(kept, separator), "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return fmt.Errorf("installing DistLock: %w", err)
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/distlocks.distlock.dev", "crd/lockclaims.distlock.dev"); err != nil {
		return fmt.Errorf("installing DistLock: %w", err)
	}
	return c.AwaitPolicies(ctx)
}
