package member

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

const (
	// manyResources is how many resources are worth lists instead of reads of each.
	manyResources = 8
	// listShare is how many listed resources there may be for each resource to be reported; with more, a list is not
	// worth its size.
	listShare = 4

	// Servers that start together meet in the same StorageVersions. A list goes out
	// of date with every report that another server makes, so that a batch is done in
	// parts, each with lists of its own, of at least minPart resources.
	parts   = 4
	minPart = 64
)

// worthLists reports whether this number of claims is better served by lists than by single reads.
func (m *Member) worthLists(claims int) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return claims >= manyResources && claims*listShare >= len(m.resources)
}

// reportMany works on claims with lists: of the StorageVersions and then the participants
// before the reports, and of the CRDs after them.
func (m *Member) reportMany(ctx context.Context, claims []claim) []error {
	if err := m.within(ctx, m.limit(claims...), func(ctx context.Context) error { return m.recheckMany(ctx, claims) }); err != nil {
		m.release(claims, err)
		return []error{err}
	}
	m.shuffle(claims)
	size := max(minPart, (len(claims)+parts-1)/parts)
	var unchecked []claim
	var failed []error
	for len(claims) > 0 {
		part := claims[:min(size, len(claims))]
		claims = claims[len(part):]
		made, errs, err := m.placeMany(ctx, part)
		unchecked, failed = append(unchecked, made...), append(failed, errs...)
		if err != nil {
			m.release(claims, err)
			failed = append(failed, err)
			break
		}
	}
	return append(failed, m.checkMany(ctx, unchecked)...)
}

// placeMany makes the reports of claims stand: it lists the StorageVersions, creates missing ones, and then lists the
// participants. It returns the claims whose CRDs have to be read, and gives back all others. If err is
// not nil, nothing could be read.
func (m *Member) placeMany(ctx context.Context, claims []claim) (unchecked []claim, failed []error, err error) {
	limit := m.limit(claims...)
	read, err := limited(ctx, m, limit, m.listStorageVersions)
	if err != nil {
		m.release(claims, err)
		return nil, nil, err
	}
	var missing, present []claim
	for _, c := range claims {
		if c.target.absent || !c.target.known || lacks(c, read[c.gr]) {
			missing = append(missing, c)
		} else {
			present = append(present, c)
		}
	}
	var mu sync.Mutex
	made, failed := m.each(ctx, missing, func(ctx context.Context, c claim) (result, error) {
		if c.target.absent || !c.target.known {
			return m.reportOne(ctx, c)
		}
		mu.Lock()
		sv := read[c.gr]
		mu.Unlock()
		sv, err := m.ensure(ctx, c, sv)
		if overtaken(err) {
			sv, err = nil, nil
		}
		mu.Lock()
		read[c.gr] = sv
		mu.Unlock()
		return placed, err
	})
	claims = slices.Concat(present, made)
	participants, err := limited(ctx, m, limit, m.participants)
	if err != nil {
		m.release(claims, err)
		return nil, failed, err
	}
	unchecked, errs := m.each(ctx, claims, func(ctx context.Context, c claim) (result, error) {
		if err := m.placeListed(ctx, c, read[c.gr], participants); err != nil || c.custom() {
			return placed, err
		}
		return m.finish(c), nil
	})
	return unchecked, append(failed, errs...), nil
}

// overtaken reports whether another writer has created, changed or deleted a StorageVersion since it was read.
func overtaken(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || storageversion.IsGone(err)
}

// placeListed is like place, with a StorageVersion from a list. If another writer has changed it since, or created
// it (nil), it is read once more, and then the participants.
func (m *Member) placeListed(ctx context.Context, c claim, sv *v1alpha1.StorageVersion, participants agree.Participants) error {
	if sv != nil {
		err := m.place(ctx, c, sv, participants)
		if !overtaken(err) {
			return err
		}
	}
	return m.placeAlone(ctx, c, nil)
}

// shuffle puts the claims in an order of this server's own, so that servers that start
// together do not meet in every StorageVersion. The built-in resources come first:
// readiness waits for them.
func (m *Member) shuffle(claims []claim) {
	m.mu.Lock()
	m.cfg.Random.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	m.mu.Unlock()
	rank := map[bool]int{true: 1} // by claim.custom
	slices.SortStableFunc(claims, func(a, b claim) int { return rank[a.custom()] - rank[b.custom()] })
}

func (m *Member) listStorageVersions(ctx context.Context) (map[schema.GroupResource]*v1alpha1.StorageVersion, error) {
	var list v1alpha1.StorageVersionList
	if err := m.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list StorageVersions: %w", err)
	}
	return byResource(list.Items), nil
}

// recheckMany is recheck for those claims that need it, with one list.
func (m *Member) recheckMany(ctx context.Context, claims []claim) error {
	if !slices.ContainsFunc(claims, claim.readFirst) {
		return nil
	}
	crds, err := m.listCRDs(ctx)
	if err != nil {
		return err
	}
	for i, c := range claims {
		if c.readFirst() {
			claims[i] = m.recheckWith(c, crds[c.target.resource.CRD])
		}
	}
	return nil
}

// checkMany is check for claims whose reports stand, with one list, and gives them back.
func (m *Member) checkMany(ctx context.Context, claims []claim) []error {
	check := m.check
	if m.worthLists(len(claims)) {
		crds, err := limited(ctx, m, m.limit(claims...), m.listCRDs)
		if err != nil {
			m.release(claims, err)
			return []error{err}
		}
		check = func(_ context.Context, c claim) error { return m.checkWith(c, crds[c.target.resource.CRD]) }
	}
	_, failed := m.each(ctx, claims, func(ctx context.Context, c claim) (result, error) {
		if err := check(ctx, c); err != nil {
			return done, err
		}
		return m.finish(c), nil
	})
	return failed
}
