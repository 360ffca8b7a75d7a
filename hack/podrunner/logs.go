package podrunner

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/util/cert"
)

// followInterval is how often a followed log is looked at for more.
const followInterval = 100 * time.Millisecond

// serveLogs serves the one part of a kubelet's API that `kubectl logs` needs, on the
// returned port, until running ends. The API server takes any certificate for a
// kubelet's, and nobody else can reach loopback.
func (r *Runner) serveLogs(running context.Context) (port int, err error) {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(r.node, []net.IP{net.ParseIP(loopback)}, nil)
	if err != nil {
		return 0, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return 0, err
	}
	listener, err := new(net.ListenConfig).Listen(running, "tcp", loopback+":0")
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", r.logs)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Minute,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		BaseContext: func(net.Listener) context.Context { return running },
	}
	r.all.Go(func() {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			_, _ = fmt.Fprintf(r.log, "pod runner: logs: %v\n", err)
		}
	})
	context.AfterFunc(running, func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// logs answers a request for a container's log. Of its options it knows follow and
// tailLines.
func (r *Runner) logs(response http.ResponseWriter, request *http.Request) {
	w := r.find(request.PathValue("namespace"), request.PathValue("pod"))
	if w == nil {
		http.Error(response, "no such pod on this node", http.StatusNotFound)
		return
	}
	file, err := os.Open(r.LogFile(w.pod(), request.PathValue("container")))
	if err != nil {
		http.Error(response, "no such container, or it has not started", http.StatusNotFound)
		return
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(file)
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
		return
	}
	query := request.URL.Query()
	if lines, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		content = tail(content, lines)
	}
	if _, err := response.Write(content); err != nil || query.Get("follow") != "true" {
		return
	}
	follow(request.Context(), response, file, w)
}

// follow copies what is added to a log until the pod has ended.
func follow(ctx context.Context, response http.ResponseWriter, file io.Reader, w *worker) {
	flush := http.NewResponseController(response)
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		ended := terminal(w.pod()) // before the last look at the file
		if _, err := io.Copy(response, file); err != nil || ended {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.missing:
			return
		case <-tick.C:
		}
	}
}

// tail is the last lines of content.
func tail(content []byte, lines int) []byte {
	all := bytes.SplitAfter(content, []byte("\n"))
	if last := len(all) - 1; len(all[last]) == 0 { // after the last newline
		all = all[:last]
	}
	return bytes.Join(all[max(0, len(all)-max(0, lines)):], nil)
}

// find returns the worker of the pod that has a name now, or nil.
func (r *Runner) find(namespace, name string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if pod := w.pod(); pod.Namespace == namespace && pod.Name == name {
			return w
		}
	}
	return nil
}
