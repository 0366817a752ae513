package server

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// openPaths are what everybody may read: health and version.
var openPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*", "/version", "/version/*"}

// applyAuth sets client-certificate authentication, by the CA in caFile and those in
// moreFile, if that is not empty, that of users whom a front proxy names, if there is one,
// and the authorizer: members of system:masters may do everything, everybody else may read
// health and version.
func applyAuth(c *genericapiserver.Config, caFile, moreFile string, proxy *genericoptions.RequestHeaderAuthenticationOptions) error {
	ca, err := clientCA(caFile, moreFile)
	if err != nil {
		return err
	}
	if err := c.Authentication.ApplyClientCert(ca, c.SecureServing); err != nil {
		return err
	}
	headers, err := proxy.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	if headers != nil {
		c.Authentication.RequestHeaderConfig = headers
		if err := c.Authentication.ApplyClientCert(headers.CAContentProvider, c.SecureServing); err != nil {
			return err
		}
	}
	c.Authentication.Authenticator, _, err = authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                          &apiserver.AnonymousAuthConfig{Enabled: true},
		ClientCertificateCAContentProvider: ca,
		RequestHeaderConfig:                headers,
	}.New()
	if err != nil {
		return err
	}
	open, err := path.NewAuthorizer(openPaths)
	if err != nil {
		return err
	}
	masters := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	c.RuleResolver = rules{}
	c.Authorization.Authorizer, err = authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "masters", Authorizer: masters},
		authorizerunion.NamedAuthorizer{AuthorizerName: "open-paths", Authorizer: open},
	)
	return err
}

func clientCA(caFile, moreFile string) (dynamiccertificates.CAContentProvider, error) {
	own, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", caFile)
	if err != nil || moreFile == "" {
		return own, err
	}
	more, err := dynamiccertificates.NewDynamicCAContentFromFile("more-client-ca", moreFile)
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	return dynamiccertificates.NewUnionCAContentProvider(own, more), nil
}

// rules tells a user what it may do, for SelfSubjectRulesReviews.
type rules struct{}

var _ authorizer.RuleResolver = rules{}

// RulesFor implements authorizer.RuleResolver.
func (rules) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	nonResource := []authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"get"}, NonResourceURLs: openPaths}}
	for _, group := range u.GetGroups() {
		if group == user.SystemPrivilegedGroup {
			all := []string{"*"}
			return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
				[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
		}
	}
	return nil, nonResource, false, nil
}
