package e2e

import (
	"flag"
	"testing"

	"github.com/concord-dev/concord/e2e/cluster"
)

var slow = flag.Bool("slow", false, "also run the tests that take minutes: rolling upgrades, servers killed and paused, an etcd that goes away")

func TestMain(m *testing.M) {
	flag.Parse()
	cluster.Main(m)
}

// TestSlow holds the tests that wait for Leases to expire and servers to be rolled.
func TestSlow(t *testing.T) {
	if !*slow {
		t.Log("not run: they take minutes; run them with -slow")
		return
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"RollingUpgrade", testRollingUpgrade},
		{"MixedReleases", testMixedReleases},
		{"Kill", testKill},
		{"Zombie", testZombie},
		{"EtcdOutage", testEtcdOutage},
		{"KillAll", testKillAll},
		{"StorageVersionFlips", testStorageVersionFlips},
		{"HastyFlips", testHastyFlips},
		{"UserMigrations", testUserMigrations},
		{"Undecodable", testUndecodable},
		{"ConversionWebhook", testConversionWebhook},
		{"APIEngine", testAPIEngine},
		{"APIWebhook", testAPIWebhook},
		{"APIMigratorKilled", testAPIMigratorKilled},
		{"APIRejected", testAPIRejected},
		{"PausedAndKilled", testPausedAndKilled},
		{"BothMigrationAPIs", testBothMigrationAPIs},
		{"MigrateCommand", testMigrateCommand},
		{"NamespaceDeletion", testNamespaceDeletion},
		{"CautiousUpgrade", testCautiousUpgrade},
		{"EmulationRollback", testEmulationRollback},
		{"GreenField", testGreenField},
		{"WholeRestart", testWholeRestart},
		{"Skew", testSkew},
		{"GateOffAndOn", testGateOffAndOn},
		{"OneServerOff", testOneServerOff},
		{"OffServerPaused", testOffServerPaused},
		{"UpDownUp", testUpDownUp},
		{"RandomFaults", testRandomFaults},
		{"MigratorKilled", testMigratorKilled},
		{"MigratorPaused", testMigratorPaused},
		{"SecondLeader", testSecondLeader},
		{"EtcdKilledMigrating", testEtcdKilledMigrating},
		{"EtcdLeaderLost", testEtcdLeaderLost},
		{"OldServerJoins", testOldServerJoins},
		{"BusyMigrations", testBusyMigrations},
		{"Informers", testInformers},
		{"Compacted", testCompacted},
		{"InvalidObjects", testInvalidObjects},
		{"BrokenObjects", testBrokenObjects},
		{"KilledBeforeProof", testKilledBeforeProof},
		{"RotationKilled", testRotationKilled},
		{"EncryptAndDecrypt", testEncryptAndDecrypt},
		{"RotationRolledBack", testRotationRolledBack},
		{"KMS", testKMS},
	} {
		t.Run(test.name, test.run)
	}
}
