package main

import (
	"testing"
	"time"
)

func TestTheKernelsFilesAreRead(t *testing.T) {
	peak, err := parsePeak("Name:\tmanager\nVmPeak:\t 2000000 kB\nVmHWM:\t   74560 kB\nVmRSS:\t   70000 kB\n")
	if err != nil || peak != 74560*1024 {
		t.Errorf("got %v, %v", peak, err)
	}
	if _, err := parsePeak("Name:\tmanager\n"); err == nil {
		t.Error("no VmHWM: no error")
	}
	used, err := parseCPU("4321 (a (b) manager) S 1 4321 4321 0 -1 4194560 8000 0 2 0 123 45 0 0 20 0 9 0 100 0 0")
	if err != nil || used != 1680*time.Millisecond {
		t.Errorf("got %v, %v", used, err)
	}
	if _, err := parseCPU("4321 (manager) S 1"); err == nil {
		t.Error("too short: no error")
	}
}
