// Package policy holds the admission policies of this folder, as they are
// installed, for the controller to compare with what the cluster has.
package policy

import "embed"

// Manifests are the policies and their bindings, and the kustomization.
//
//go:embed *.yaml
var Manifests embed.FS
