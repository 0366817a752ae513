package generic

// FreshTokens and Stoppable export functions for tests.
var (
	FreshTokens = freshTokens
	Stoppable   = stoppable
)
