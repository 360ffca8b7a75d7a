//go:build unix && !linux

package main

import (
	"errors"
	"syscall"
)

// dieWithParent does nothing: the kernel offers no such thing.
func dieWithParent(*syscall.SysProcAttr) {}

// groupRuns reports whether there is a process in a group.
func groupRuns(group int) bool { return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }
