// Package browser tests the dashboard in a real browser, Chromium. It is a module of its own,
// so that the tests of the others need none.
package browser
