package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errNoWay says that the objects behind one that cannot be read cannot be listed.
var errNoWay = errors.New("the list cannot go on behind an object that cannot be read")

// many objects in a row that cannot be read may be a conversion webhook's failure, or another that passes.
const many = 10

// around skips objects that cannot be read, if the server names them, as kube-apiserver does since 1.37: a list of one
// object then names all unreadable objects before the next readable one.
func (l *lister) around(ctx context.Context, at place, cause *unreadable) (next place, err error) {
	keys := unreadKeys(cause.err)
	if now := l.opts.Clock.Now(); len(keys) >= many && l.outage.lasts(now) {
		return at, waitOr(ctx, l.opts.Clock, min(l.opts.WebhookPatience/8+minBackoff, maxBackoff), nil)
	}
	found, err := l.unread(ctx, keys)
	if err != nil {
		return place{}, err
	}
	t, ok := readToken(at.token)
	switch {
	case !ok:
		return place{}, fmt.Errorf("%w: the server's continue tokens are of a format of its own: %w", errNoWay, cause)
	case len(found) == 0:
		where := "the first one of all"
		if t.Start != "" {
			where = fmt.Sprintf("the first one behind %q", strings.TrimSuffix(t.Start, "\x00"))
		}
		return place{}, fmt.Errorf("%w; the server does not name it, it is %s, and neither it nor others from there on are migrated (concord census --verify finds values that do not decode): %w",
			errNoWay, where, cause)
	}
	behind := t.behind(found[len(found)-1].NamespacedName)
	if behind.Start <= t.Start {
		return place{}, fmt.Errorf("%w: the server names one that is not behind %q: %w", errNoWay, strings.TrimSuffix(t.Start, "\x00"), cause)
	}
	l.submitted = true
	next = place{token: behind.text(), left: max(uncounted, at.left-int64(len(found)))}
	p := l.listed(len(found), next.token, next.left)
	for _, one := range found {
		switch v := judge(one.err); {
		case one.err == nil: // it can be read now
			if err := l.task(ctx, one.now, p); err != nil {
				return place{}, err
			}
		case gone(one.err):
			l.took(p, Progress{Gone: 1})
		default:
			if v.reason == Rejected {
				v.reason = cause.reason
			}
			l.fail(p, Failure{NamespacedName: one.NamespacedName, Reason: v.reason, Detail: detail(one.err)})
		}
	}
	l.progress.Tell()
	return next, nil
}

// unread is an object that a list could not read, as it is now.
type unread struct {
	types.NamespacedName
	now *metav1.PartialObjectMetadata
	err error
}

// unread reads the objects at keys of etcd. A key does not say whether objects of its resource have
// namespaces. If they have none, the server does not know the path with one.
func (l *lister) unread(ctx context.Context, keys []string) (all []unread, err error) {
	namespaced := true
	for _, key := range keys {
		one := unread{NamespacedName: nameAt(key, namespaced)}
		one.now, one.err = l.look(ctx, one.NamespacedName)
		if namespaced && apierrors.IsNotFound(one.err) && !gone(one.err) {
			namespaced = false
			one.NamespacedName = nameAt(key, namespaced)
			one.now, one.err = l.look(ctx, one.NamespacedName)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(one.err, ErrUnavailable):
			return nil, one.err
		case apierrors.IsNotFound(one.err) && !gone(one.err): // and so its name is not known
			return nil, fmt.Errorf("read the object at %s: %w", key, one.err)
		}
		all = append(all, one)
	}
	return all, nil
}

// nameAt is the name at the end of a key of etcd, with the namespace before it if there is one.
func nameAt(key string, namespaced bool) (name types.NamespacedName) {
	parts := strings.Split(key, "/")
	if n := len(parts); n > 1 && namespaced {
		name.Namespace = parts[n-2]
	}
	name.Name = parts[len(parts)-1]
	return name
}

// unreadKeys are the keys of the objects that a list could not read, in its order, if the server names them.
func unreadKeys(err error) (keys []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field != "" {
			keys = append(keys, cause.Field)
		}
	}
	return keys
}

// token is a continue token as the API server library writes it, in kube-apiserver and in
// aggregated servers. Its format is public and cannot change: EncodeContinue in
// k8s.io/apiserver/pkg/storage.
type token struct {
	Version string `json:"v"`
	// Revision is that of the list; newest stands for the objects that are there when it goes on.
	Revision int64 `json:"rv"`
	// Start is the first key that may come, without the part before the namespace.
	Start string `json:"start"`
}

const (
	tokenVersion       = "meta.k8s.io/v1"
	newest       int64 = -1
)

// readToken reads a server's token; ok if it is of the known format. The empty one, which
// is the beginning, is of every format.
func readToken(text string) (t token, ok bool) {
	if text == "" {
		return token{Version: tokenVersion, Revision: newest}, true
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, &t) != nil {
		return token{}, false
	}
	return t, t.Version == tokenVersion
}

// behind is the token for what comes behind an object.
func (t token) behind(object types.NamespacedName) token {
	t.Start = strings.TrimPrefix(object.String(), "/") + "\x00"
	return t
}

func (t token) text() string {
	data, _ := json.Marshal(t) // strings and numbers always have a form
	return base64.RawURLEncoding.EncodeToString(data)
}
