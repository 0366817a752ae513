package figures

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Quantile returns the smallest sample that at least the share q (0 to 1) of all samples
// does not exceed; NaN without samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Median is the sample in the middle, or the mean of the two there; NaN without samples.
func Median(samples []float64) float64 {
	low := Quantile(samples, 0.5)
	if len(samples)%2 == 1 || len(samples) == 0 {
		return low
	}
	return (low + slices.Sorted(slices.Values(samples))[len(samples)/2]) / 2
}

const resamples = 400

// RatioInterval returns the bounds between which statistic(a)/statistic(b) lies with 95 %
// confidence, by bootstrap: the samples are pairs, measured one right after the other, and
// pairs are drawn at random with replacement. It is not ok with fewer than 20 pairs.
func RatioInterval(a, b []float64, statistic func([]float64) float64) (low, high float64, ok bool) {
	pairs := min(len(a), len(b))
	if pairs < 20 {
		return 0, 0, false
	}
	// The seed is fixed, so that the same samples always give the same bounds.
	random := rand.New(rand.NewPCG(1, 2))
	ratios := make([]float64, resamples)
	drawnA, drawnB := make([]float64, pairs), make([]float64, pairs)
	for r := range ratios {
		for i := range pairs {
			drawn := random.IntN(pairs)
			drawnA[i], drawnB[i] = a[drawn], b[drawn]
		}
		ratios[r] = statistic(drawnA) / statistic(drawnB)
	}
	return Quantile(ratios, 0.025), Quantile(ratios, 0.975), true
}
