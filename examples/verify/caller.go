// Verifies the caller of a forwarded request: docs/design/security.md, "With a library". No test runs it.
//
// go get github.com/golang-jwt/jwt/v5 github.com/MicahParks/keyfunc/v3
package caller

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

const issuer = "https://gateway.example.com" // the gateway: `issuer` in its /.well-known/a2a-gateway
const workspace = "acme-pm"                  // this agent

// Claims of a pair token: Subject is who calls.
type Claims struct {
	jwt.RegisteredClaims
	Scope  string  `json:"scope"`
	Rel    string  `json:"rel"`
	Org    string  `json:"org"`
	Method *string `json:"method"`
	BH     *string `json:"bh"`
}

// Verifier holds the gateway's keys, fresh until the context ends.
type Verifier struct{ keys keyfunc.Keyfunc }

func New(ctx context.Context) (*Verifier, error) {
	keys, err := keyfunc.NewDefaultCtx(ctx, []string{issuer + "/.well-known/jwks.json"})
	return &Verifier{keys}, err
}

// Verify returns who calls, for the body as it came.
func (v *Verifier) Verify(token string, body []byte) (*Claims, error) {
	claims := &Claims{}
	parsed, err := jwt.ParseWithClaims(token, claims, v.keys.Keyfunc,
		jwt.WithValidMethods([]string{"EdDSA", "ES256"}), jwt.WithIssuer(issuer), jwt.WithAudience(workspace),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(5*time.Second))
	if err != nil {
		return nil, err
	}
	if len(parsed.Header) != 3 || parsed.Header["typ"] != "a2a-pair+jwt" {
		return nil, errors.New("not a pair token")
	}
	if len(claims.Audience) != 1 || claims.Scope != "a2a:message" || claims.Subject == "" ||
		claims.ID == "" || claims.NotBefore == nil || claims.IssuedAt == nil {
		return nil, errors.New("another audience or scope, or a claim is missing")
	}
	if claims.BH != nil { // where the workspace has `proof` "request"
		digest := sha256.Sum256(body)
		if *claims.BH != base64.RawURLEncoding.EncodeToString(digest[:]) {
			return nil, errors.New("another body")
		}
	}
	if claims.Method != nil {
		var call struct {
			Method string `json:"method"`
		}
		if json.Unmarshal(body, &call) != nil || *claims.Method != call.Method {
			return nil, errors.New("another method")
		}
	}
	return claims, nil
}
