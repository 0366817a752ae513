package generic

// FreshTokens and Stoppable are for tests.
var (
	FreshTokens = freshTokens
	Stoppable   = stoppable
)
