package join

import (
	"cmp"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Defaults returns a Config with the defaults of the fields that have flags, except for the renew interval, which is a
// third of the final lease duration.
func Defaults() Config {
	c := Config{}.withDefaults()
	c.IdentityLeaseRenewInterval = 0
	return c
}

// AddFlags adds the flags of the fields that operators set. Their defaults are the values in c. Those that
// are zero get what they have in Defaults first.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	defaults, aThird := Defaults(), ""
	c.IdentityLeaseDuration = cmp.Or(c.IdentityLeaseDuration, defaults.IdentityLeaseDuration)
	c.ControllerLeaseDuration = cmp.Or(c.ControllerLeaseDuration, defaults.ControllerLeaseDuration)
	c.KeyringInterval = cmp.Or(c.KeyringInterval, defaults.KeyringInterval)
	c.MigrationSettle = cmp.Or(c.MigrationSettle, defaults.MigrationSettle)
	c.RequestsPerCPU = cmp.Or(c.RequestsPerCPU, defaults.RequestsPerCPU)
	if c.IdentityLeaseRenewInterval == 0 {
		aThird = " Default: a third of --identity-lease-duration."
	}
	fs.DurationVar(&c.IdentityLeaseDuration, "identity-lease-duration", c.IdentityLeaseDuration, "How long this server counts as alive without renewing its identity Lease.")
	fs.DurationVar(&c.IdentityLeaseRenewInterval, "identity-lease-renew-interval", c.IdentityLeaseRenewInterval, "Time between renewals of the identity Lease."+aThird)
	fs.DurationVar(&c.ControllerLeaseDuration, "controller-lease-duration", c.ControllerLeaseDuration, "How long the elected controllers keep their lock without renewing it.")
	fs.VarPF(unless{&c.NoControllers}, "controllers", "", "Whether this server may run the leader-elected controllers.").NoOptDefVal = "true"
	fs.Var(latency{&c.MigrationMaxAddedLatency}, "migration-max-added-latency", "By how much a storage migration may lengthen the slower requests of this server's clients; beyond it the migration slows down, to no less than 650 objects per second of up to 16 KiB, or 100 through the API. \"relative\" means by half of what they take without it, and never less than 2ms; 0 means full speed. A migration's spec.maxAddedLatency goes first.")
	fs.IntVar(&c.MigrationMaxObjectsPerSecond, "migration-max-objects-per-second", c.MigrationMaxObjectsPerSecond, "Most objects that a storage migration rewrites per second; 0 means no bound. A migration's spec.maxObjectsPerSecond goes first.")
	fs.DurationVar(&c.MigrationSettle, "migration-settle", c.MigrationSettle, "For how long after a kube-apiserver without Concord, or one with the gate StorageVersionAPI off, has stopped no migration begins: longer than its --shutdown-delay-duration and --request-timeout together.")
	fs.IntVar(&c.RequestsPerCPU, "requests-per-cpu", c.RequestsPerCPU, "How many requests may be under way for each CPU while the CPUs are busy, not counting those that have lasted 50 ms. Of those that priority and fairness has admitted beyond that, priority levels and users take turns, so that nobody waits for the flood of another user; beside them as many again are under way for users who have no other. Watches and exempt users do not wait. Negative: no bound, as in kube-apiserver; 0: the default.")
	fs.DurationVar(&c.KeyringInterval, "encryption-provider-config-reload-interval", c.KeyringInterval, "How often a changed --encryption-provider-config is looked for, with --encryption-provider-config-automatic-reload, and KMS plugins are asked which key they use (that at most every 20 s).")
}

// relative is the value of a latency flag that sets no absolute bound.
const relative = "relative"

// latency is the value of a flag for a duration that may be none.
type latency struct{ field **time.Duration }

var _ pflag.Value = latency{}

// String implements pflag.Value.
func (l latency) String() string {
	if l.field == nil || *l.field == nil {
		return relative
	}
	return (*l.field).String()
}

// Set implements pflag.Value.
func (l latency) Set(text string) error {
	if text == relative {
		*l.field = nil
		return nil
	}
	d, err := time.ParseDuration(text)
	if err == nil {
		*l.field = &d
	}
	return err
}

// Type implements pflag.Value.
func (l latency) Type() string { return "duration" }

// unless is the value of a flag that is the opposite of a field.
type unless struct{ field *bool }

var _ pflag.Value = unless{}

// String implements pflag.Value.
func (u unless) String() string { return strconv.FormatBool(u.field == nil || !*u.field) }

// Set implements pflag.Value.
func (u unless) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err == nil {
		*u.field = !on
	}
	return err
}

// Type implements pflag.Value.
func (unless) Type() string { return "bool" }
