package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity of every certificate; a cluster is started anew long before.
const validity = 365 * 24 * time.Hour

// pki is a certificate authority that signs the API server's certificate and those
// of its clients, and the key that signs service account tokens. Every start makes
// a new one.
type pki struct {
	dir string
	key crypto.Signer
	ca  *x509.Certificate
}

// Files that the parts are started with.
func (p *pki) caFile() string              { return filepath.Join(p.dir, "ca.crt") }
func (p *pki) serverCertFile() string      { return filepath.Join(p.dir, "server.crt") }
func (p *pki) serverKeyFile() string       { return filepath.Join(p.dir, "server.key") }
func (p *pki) serviceAccountsFile() string { return filepath.Join(p.dir, "service-accounts.key") }

// newPKI writes the files above into dir.
func newPKI(dir string) (*pki, error) {
	p := &pki{dir: dir}
	var err error
	if p.key, err = newKey(); err != nil {
		return nil, err
	}
	if p.ca, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "distlock-local"}, p.key); err != nil {
		return nil, fmt.Errorf("making a certificate authority: %w", err)
	}
	serverCert, serverKey, err := p.sign(x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(loopback), net.IPv6loopback},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
	})
	if err != nil {
		return nil, err
	}
	tokens, err := newKey()
	if err != nil {
		return nil, err
	}
	tokensPEM, err := keyutil.MarshalPrivateKeyToPEM(tokens)
	if err != nil {
		return nil, err
	}
	for path, content := range map[string][]byte{
		p.caFile(): p.caPEM(), p.serverCertFile(): serverCert, p.serverKeyFile(): serverKey, p.serviceAccountsFile(): tokensPEM,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pki) caPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: p.ca.Raw})
}

// client returns certificate and key, in PEM, of a user and its groups.
func (p *pki) client(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return p.sign(x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// sign fills in what all certificates have in common, with a new key.
func (p *pki) sign(template x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(validity)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, p.ca, key.Public(), p.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a certificate for %s: %w", template.Subject.CommonName, err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), keyPEM, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}
