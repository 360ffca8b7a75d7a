//go:build !linux

package process

import "syscall"

// dieWithParent does nothing: only Linux knows how to. Elsewhere a child outlives a
// parent that was killed, and has to be stopped by hand.
func dieWithParent(*syscall.SysProcAttr) {}
