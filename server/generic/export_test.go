package generic

// FreshTokens, NewServiceResolver, RootCA and Stoppable export functions for tests.
var (
	FreshTokens        = freshTokens
	NewServiceResolver = newServiceResolver
	RootCA             = rootCA
	Stoppable          = stoppable
)
