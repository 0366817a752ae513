package generic

// FreshTokens, NewEgressSelector, NewServiceResolver, RootCA and Stoppable export functions for tests.
var (
	FreshTokens        = freshTokens
	NewEgressSelector  = newEgressSelector
	NewServiceResolver = newServiceResolver
	RootCA             = rootCA
	Stoppable          = stoppable
)
