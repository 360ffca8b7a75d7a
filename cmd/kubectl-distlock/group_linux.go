package main

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel kill the command when run is killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// groupRuns reports whether a process of a group may still do something: zombies,
// which somebody else has to reap, do not.
func groupRuns(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	members := 0
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		state, of := stateOf(p.Name())
		if of != group {
			continue
		}
		if state != "Z" && state != "X" {
			return true
		}
		members++
	}
	return members == 0 // or this /proc is of other processes
}

// stateOf is the state of a process, and its group; 0 where it has ended.
func stateOf(pid string) (state string, group int) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", 0
	}
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ") // the name may have any character
	words := strings.Fields(rest)
	if len(words) < 3 {
		return "", 0
	}
	group, _ = strconv.Atoi(words[2])
	return words[0], group
}
