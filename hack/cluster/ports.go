package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports are taken from below the range that kernels give to outgoing connections
// (from 32768 on Linux, from 49152 elsewhere): a part that is stopped for a while
// finds its port free again.
const firstPort, lastPort = 20000, 32000

// freePorts returns n different ports on which nobody listens. Somebody might take
// one before its user does; twelve thousand ports make that unlikely.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if slices.Contains(ports, port) || !isFree(ctx, port) {
			continue
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports on loopback")
}

func isFree(ctx context.Context, port int) bool {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	return err == nil && listener.Close() == nil
}
