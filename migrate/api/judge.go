package api

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// answer is the meaning of the server's answer to a patch.
type answer int

const (
	// written: the object is stored as the server stores objects now.
	written answer = iota
	// busy: the server takes nothing at the moment.
	busy
	// unsure: the server failed, maybe because of this object and maybe only now.
	unsure
	// away: a conversion webhook, or a KMS plugin, that this object needs gives the server no
	// answer.
	away
	// refused: it will not do this, however often it is asked.
	refused
	// unable: it will do this for no object.
	unable
)

// verdict is the result of judging an answer.
type verdict struct {
	answer answer
	// reason is why the object failed, if it did.
	reason Reason
	// after is when the server wants to be asked again at the earliest.
	after time.Duration
	// everybody says that a busy server speaks of itself and not of one object: it limits requests, or its etcd does
	// not answer.
	everybody bool
}

// judge reads the answer to a patch. An error without a status is the network's: the
// server may or may not have done what it was asked for.
func judge(err error) verdict {
	if err == nil {
		return verdict{}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return verdict{answer: busy, reason: Rejected}
	}
	seconds, _ := apierrors.SuggestsClientDelay(err)
	v := verdict{reason: Rejected, after: time.Duration(seconds) * time.Second}
	text := err.Error()
	switch code := status.Status().Code; {
	case strings.Contains(text, "request is too large") || strings.Contains(text, "message larger than max") || code == http.StatusRequestEntityTooLarge:
		// The second text is that of the API server's etcd client.
		v.answer, v.reason = refused, TooLarge
	case strings.Contains(text, "conversion webhook for"):
		// The API server's own words for what a conversion webhook did; it has no code for it.
		v.answer, v.reason = unsure, WebhookFailed
		if unreached.MatchString(text) {
			v.answer = away
		}
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout,
		code == http.StatusBadGateway, status.Status().Reason == metav1.StatusReasonServerTimeout:
		v.answer, v.everybody = busy, code == http.StatusTooManyRequests || etcdUnreached.MatchString(text) || concordRefuses.MatchString(text)
	case code == http.StatusConflict:
		v.answer, v.reason = refused, Conflict
	case code == http.StatusMethodNotAllowed, code == http.StatusUnsupportedMediaType, code == http.StatusUnauthorized, code == http.StatusNotAcceptable:
		v.answer = unable
	case code >= http.StatusInternalServerError:
		v.answer = unsure
		if undecoded(status.Status(), text) {
			v.reason = DoesNotDecode
		}
		switch {
		case keysUnreached.MatchString(text):
			v.answer = away
		case etcdUnreached.MatchString(text):
			v.answer, v.everybody = busy, true
		}
	default:
		v.answer = refused
	}
	return v
}

// unreached matches the API server's words where a conversion webhook was not reached, or
// answered 404, 429, 503 or 504; a webhook's reason for refusing an object stands in the
// same place.
var unreached = regexp.MustCompile(`conversion webhook for .* failed: (Post "|the server (could not find the requested resource|has received too many requests|is currently unable to handle the request|was unable to return a response in the time allotted))`)

// keysUnreached matches the text of an error when a KMS plugin was not reached: for one value, since the server
// started, or for so long that the server no longer encrypts.
var keysUnreached = regexp.MustCompile(`failed to decrypt DEK, error: rpc error: code = (Unavailable|DeadlineExceeded) |got unexpected nil transformer|encryptedDEKSource with keyID hash .* expired at `)

// etcdUnreached matches its words, with code 500, where etcd did not answer or takes nothing:
// the errors of an etcd that restarts, has lost its leader, or is full, in their own words.
var etcdUnreached = regexp.MustCompile(`rpc error: code = (Unavailable|DeadlineExceeded|Canceled) |etcdserver: (request timed out|no leader|not leader|leader changed|server stopped|too many requests|unhealthy cluster|mvcc: database space exceeded)`)

// concordRefuses matches the words with which a Concord server refuses all writes, whatever object they are for.
var concordRefuses = regexp.MustCompile(`nothing was written, try again: |storage version registration`)

// overloaded says whether an error is about everything that the server does.
func overloaded(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || etcdUnreached.MatchString(err.Error())
}

// undecoded recognises that the server cannot read what it has stored.
func undecoded(s metav1.Status, text string) bool {
	if s.Reason == metav1.StatusReasonStoreReadError {
		return true
	}
	for _, words := range []string{"unable to decode", "cannot decode", "failed to decode", "couldn't get version/kind", "unable to transform", "data from the storage is not transformable", "invalid character", "no kind \"", "to convert CR from an invalid group/version"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// lasting reports whether a list fails for a reason that neither waiting nor another version changes.
func lasting(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// maxDetail bounds the text kept of an error, in bytes. What ails a webhook, or which right is missing, stands at the
// end of the API server's sentences, behind long names.
const maxDetail = 512

func detail(err error) string {
	text := err.Error()
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return text
}

// expired returns the place where a list can go on whose token is too old; ok if it is. The place is
// empty where the server knows none, and the list has to begin again.
func expired(err error) (place string, ok bool) {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) || !errors.As(err, &status) {
		return "", false
	}
	return status.Status().Continue, true
}
