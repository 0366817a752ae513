package generic

// FreshTokens is for tests.
var FreshTokens = freshTokens
