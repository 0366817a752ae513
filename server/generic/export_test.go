package generic

// FreshTokens, RootCA and Stoppable export functions for tests.
var (
	FreshTokens = freshTokens
	RootCA      = rootCA
	Stoppable   = stoppable
)
