package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

var colours = os.Getenv("NO_COLOR") == "" && isTerminal(os.Stdout)

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func paint(code, s string) string {
	if !colours {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func bold(s string) string  { return paint("1", s) }
func dim(s string) string   { return paint("2", s) }
func red(s string) string   { return paint("31", s) }
func green(s string) string { return paint("32", s) }

// heading starts a step.
func heading(s string) { fmt.Printf("\n%s\n", bold("== "+s)) }

// note explains.
func note(format string, args ...any) { fmt.Println(fmt.Sprintf(format, args...)) }

// happened tells what was just seen, and when.
func happened(format string, args ...any) {
	fmt.Printf("   %s  %s\n", dim(time.Now().Format("15:04:05.000")), fmt.Sprintf(format, args...))
}

// kept tells a promise that held.
func kept(format string, args ...any) {
	fmt.Printf("   %s %s\n", green("ok"), fmt.Sprintf(format, args...))
}

func indent(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n   ")
}
