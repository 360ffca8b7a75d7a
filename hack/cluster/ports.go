package cluster

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports are taken from below the range that kernels give to outgoing connections
// (from 32768 on Linux, from 49152 elsewhere): a part that is stopped for a while
// finds its port free again.
const firstPort, lastPort = 20000, 32000

// freePorts returns n different ports on which nobody listens. Somebody might take
// one before its user does; twelve thousand ports make that unlikely.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort))))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // at the end, so that they differ
		if ports = append(ports, listener.Addr().(*net.TCPAddr).Port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports on loopback")
}
