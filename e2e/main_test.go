package e2e

import (
	"flag"
	"testing"

	"github.com/concord-dev/concord/e2e/cluster"
)

var slow = flag.Bool("slow", false, "also run the tests that take minutes: rolling upgrades, servers killed and paused, an etcd that goes away")

func TestMain(m *testing.M) {
	cluster.Serve() // before flags are parsed: a process in another role has other flags
	flag.Parse()
	cluster.Main(m)
}

// slowTest is a test of TestSlow.
type slowTest struct {
	name string
	run  func(*testing.T)
}

// The busy tests need the machine for themselves; the waiting ones mostly wait for Leases to
// expire or for something to come back.
var (
	busy = []slowTest{
		{"MixedReleases", testMixedReleases},
		{"OwnUpgrade", testOwnUpgrade},
		{"Kill", testKill},
		{"Zombie", testZombie},
		{"EtcdOutage", testEtcdOutage},
		{"KillAll", testKillAll},
		{"StorageVersionFlips", testStorageVersionFlips},
		{"HastyFlips", testHastyFlips},
		{"APIMigratorKilled", testAPIMigratorKilled},
		{"APIEtcdFaults", testAPIEtcdFaults},
		{"WholeRestart", testWholeRestart},
		{"RandomFaults", testRandomFaults},
		{"Linearizable", testLinearizable},
		{"MigratorKilled", testMigratorKilled},
		{"MigratorPaused", testMigratorPaused},
		{"SecondLeader", testSecondLeader},
		{"EtcdLeaderLost", testEtcdLeaderLost},
		{"OldServerJoins", testOldServerJoins},
		{"Informers", testInformers},
		{"CompactedAndTurned", testCompactedAndTurned},
	}
	waiting = []slowTest{
		{"ConversionWebhook", testConversionWebhook},
		{"APIWebhook", testAPIWebhook},
		{"APIDefaults", testAPIDefaults},
		{"PausedAndKilled", testPausedAndKilled},
		{"BothMigrationAPIs", testBothMigrationAPIs},
		{"MigrateCommand", testMigrateCommand},
		{"CautiousUpgrade", testCautiousUpgrade},
		{"EmulationRollback", testEmulationRollback},
		{"GreenField", testGreenField},
		{"Skew", testSkew},
		{"GateOffAndOn", testGateOffAndOn},
		{"OneServerOff", testOneServerOff},
		{"OffServerPaused", testOffServerPaused},
		{"InvalidObjects", testInvalidObjects},
		{"BrokenObjects", testBrokenObjects},
		{"KilledBeforeProof", testKilledBeforeProof},
		{"RotationKilled", testRotationKilled},
		{"EncryptAndDecrypt", testEncryptAndDecrypt},
		{"RotationRolledBack", testRotationRolledBack},
		{"APIRotation", testAPIRotation},
		{"KMS", testKMS},
		{"StopWhileStarting", testStopWhileStarting},
		{"RefusedSurroundings", testRefusedSurroundings},
		{"CompatibilityVersionsOff", testCompatibilityVersionsOff},
		{"ForgedStorageState", testForgedStorageState},
		{"ElectionsGivenUp", testElectionsGivenUp},
		{"SharedDirectory", testSharedDirectory},
	}
)

// TestSlow holds the tests that wait for Leases to expire and servers to be rolled. The waiting
// ones run in parallel, as many at a time as -parallel says.
func TestSlow(t *testing.T) {
	if !*slow {
		t.Log("not run: they take minutes; run them with -slow")
		return
	}
	for _, test := range busy {
		t.Run(test.name, test.run)
	}
	for _, test := range waiting {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
