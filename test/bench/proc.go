package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// clockTick is USER_HZ, which is the same on all that Linux runs on.
	clockTick = 10 * time.Millisecond
	// quietFor and quietCPU say when the controller has nothing left to do: it has used
	// no more processor time than that for so long.
	quietFor = 5 * time.Second
	quietCPU = 3 * clockTick
	// quietPatience is for thousands of Jobs that have just come.
	quietPatience = 20 * time.Minute
)

// peakMemory is the most that a process has had resident so far (VmHWM), in bytes.
func peakMemory(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parsePeak(string(content))
}

func parsePeak(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("no VmHWM in the process's status")
}

// cpuTime is what a process has used so far, in itself and in the kernel.
func cpuTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(content))
}

func parseCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may have anything in it
	const utime, stime = 14 - 3, 15 - 3                             // as proc(5) counts them; these begin with the third
	if len(fields) <= stime {
		return 0, errors.New("the process's stat is not as proc(5) says")
	}
	user, err := strconv.ParseInt(fields[utime], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[stime], 10, 64)
	return time.Duration(user+system) * clockTick, err
}

// spenders are the processes whose processor time is told apart.
var spenders = [...]string{"the API server", "etcd", "the controller", "the clients"}

// spent is the processor time that each of them has used.
type spent [len(spenders)]time.Duration

func (s *stage) spent() (spent, error) {
	var now spent
	for i, pid := range [len(spenders)]int{s.APIServer.PID(), s.Etcd.PID(), s.controller.PID(), os.Getpid()} {
		var err error
		if now[i], err = cpuTime(pid); err != nil {
			return now, err
		}
	}
	return now, nil
}

func (s spent) since(before spent) spent {
	for i := range s {
		s[i] -= before[i]
	}
	return s
}

func (s spent) and(more spent) spent {
	for i := range s {
		s[i] += more[i]
	}
	return s
}

// awaitQuiet returns when the controller has nothing left to do.
func (s *stage) awaitQuiet(ctx context.Context) error {
	before, err := cpuTime(s.controller.PID())
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, quietFor, quietPatience, false, func(context.Context) (bool, error) {
		now, err := cpuTime(s.controller.PID())
		used := now - before
		before = now
		return used <= quietCPU, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the controller to have nothing left to do: %w", err)
	}
	return nil
}
