package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type franz struct {
	run
	client *kgo.Client
	admin  *kadm.Client
}

func franzGo(r run) {
	client := must(kgo.NewClient(
		kgo.SeedBrokers(r.bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// What it knows of topics is at most so old, and 5 s by default.
		kgo.MetadataMinAge(pause),
	))
	defer client.Close()
	f := franz{r, client, kadm.NewClient(client)}
	f.topics()
	f.topicConfigs()
	f.brokerConfigs()
	f.produce()
	f.logDirs()
	f.placement()
	f.cluster()
	f.features()
	f.transactions()
	f.codecs()
	f.deletion()
}

func (f franz) topics() {
	create := func(factor int16, configs map[string]*string) any {
		made, err := f.admin.CreateTopic(f.ctx, 2, factor, configs, f.name("in"))
		return row{"error": outcome(err), "partitions": made.NumPartitions, "factor": made.ReplicationFactor}
	}
	f.note("create with too many replicas", create(3, nil))
	f.note("create with nonsense", create(1, map[string]*string{"retention.ms": kadm.StringPtr("x")}))
	f.note("create", create(1, map[string]*string{"max.message.bytes": kadm.StringPtr("500000")}))
	f.note("create again", create(1, nil))
	check(must(f.admin.CreateTopics(f.ctx, 1, 1, nil, f.name("out"), f.name("codecs"))).Error())
	grown := must(f.admin.UpdatePartitions(f.ctx, 3, f.name("in")))
	f.note("grow", outcome(grown.Error()))
	shrunk := must(f.admin.UpdatePartitions(f.ctx, 2, f.name("in")))
	f.note("shrink", outcome(shrunk[f.name("in")].Err))
	f.note("topics", eventually(func() any {
		saw := []string{}
		for _, each := range must(f.admin.ListTopics(f.ctx)).Sorted() {
			if strings.HasPrefix(each.Topic, f.prefix) {
				saw = append(saw, fmt.Sprint(each.Topic, " ", len(each.Partitions)))
			}
		}
		return saw
	}, []string{f.name("codecs") + " 1", f.name("in") + " 3", f.name("out") + " 1"}))
}

func entries(configs map[string]string) []kadm.AlterConfig {
	altered := []kadm.AlterConfig{}
	for _, key := range slices.Sorted(maps.Keys(configs)) {
		altered = append(altered, kadm.AlterConfig{Name: key, Value: kadm.StringPtr(configs[key])})
	}
	return altered
}

func values(described kadm.ResourceConfig, keys ...string) []string {
	saw := []string{}
	for _, key := range keys {
		for _, each := range described.Configs {
			if each.Key == key {
				saw = append(saw, each.MaybeValue()+" "+each.Source.String())
			}
		}
	}
	return saw
}

func (f franz) topicConfigs() {
	topic := f.name("in")
	seen := func(retention, segment string) any {
		return eventually(func() any {
			described := must(f.admin.DescribeTopicConfigs(f.ctx, topic))
			return values(described[0], "retention.ms", "segment.bytes")
		}, []string{retention, segment})
	}
	state := func(name string, configs map[string]string) string {
		altered, err := f.admin.AlterTopicConfigsState(f.ctx, entries(configs), name)
		check(err)
		return outcome(altered[0].Err)
	}
	f.note("alter one", state(topic, map[string]string{"retention.ms": "90000000"}))
	f.note("alter one: then", seen("90000000 DYNAMIC_TOPIC_CONFIG", "1073741824 DEFAULT_CONFIG"))
	f.note("alter another", state(topic, map[string]string{"segment.bytes": "2000000"}))
	f.note("alter another: then", seen("604800000 DEFAULT_CONFIG", "2000000 DYNAMIC_TOPIC_CONFIG"))
	f.note("alter to nonsense", state(topic, map[string]string{"retention.ms": "x"}))
	f.note("alter an unknown one", state(topic, map[string]string{"no.such": "1"}))
	f.note("alter an absent topic", state(f.name("absent"), map[string]string{"retention.ms": "1"}))
	incremental := []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("80000000")},
		{Op: kadm.DeleteConfig, Name: "segment.bytes"},
	}
	checked := must(f.admin.ValidateAlterTopicConfigs(f.ctx, incremental, topic))
	f.note("validate incrementally", outcome(checked[0].Err))
	altered := must(f.admin.AlterTopicConfigs(f.ctx, incremental, topic))
	f.note("alter incrementally", outcome(altered[0].Err))
	f.note("alter incrementally: then", seen("80000000 DYNAMIC_TOPIC_CONFIG", "1073741824 DEFAULT_CONFIG"))
	described := must(f.admin.DescribeTopicConfigs(f.ctx, f.name("absent")))
	f.note("describe an absent topic", outcome(described[0].Err))
}

func (f franz) brokerConfigs() {
	const key, broker = "compression.lz4.level", 1
	seen := func(value string) any {
		return eventually(func() any {
			return values(must(f.admin.DescribeBrokerConfigs(f.ctx, broker))[0], key)
		}, []string{value})
	}
	state := func(configs map[string]string) string {
		altered := must(f.admin.AlterBrokerConfigsState(f.ctx, entries(configs), broker))
		return outcome(altered[0].Err)
	}
	f.note("alter the broker", state(map[string]string{key: "5"}))
	f.note("alter the broker: then", seen("5 DYNAMIC_BROKER_CONFIG"))
	f.note("alter what is read-only", state(map[string]string{"num.partitions": "5"}))
	f.note("take it back", state(nil))
	f.note("take it back: then", seen("9 DEFAULT_CONFIG"))
	listed := must(f.admin.ListConfigResources(f.ctx, kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker))
	f.note("config resources", []any{
		f.mine(kadm.ListedConfigResources{Resources: listed.FilterTypes(kmsg.ConfigResourceTypeTopic)}.Names()),
		kadm.ListedConfigResources{Resources: listed.FilterTypes(kmsg.ConfigResourceTypeBroker)}.Names(),
	})
}

func (f franz) produce() {
	for number, value := range []string{"a", "b", "c"} {
		produced := f.client.ProduceSync(f.ctx, &kgo.Record{
			Topic: f.name("in"), Partition: 0, Value: []byte(value), Key: []byte("key"),
			Headers:   []kgo.RecordHeader{{Key: "number", Value: []byte{byte(number)}}},
			Timestamp: time.UnixMilli(firstTimestamp + int64(number)),
		})
		f.note("produce "+value, must(produced.First()).Offset)
	}
	id, epoch, err := f.client.ProducerID(f.ctx)
	check(err)
	f.note("as an idempotent producer", []any{id >= 0, epoch})
	set := kadm.TopicsSet{}
	set.Add(f.name("in"), 0)
	saw := []any{}
	for _, each := range must(f.admin.DescribeProducers(f.ctx, set)).SortedProducers() {
		saw = append(saw, []any{each.ProducerID == id, each.ProducerEpoch, each.LastSequence, each.LastTimestamp})
	}
	f.note("producers", saw)
}

func (f franz) logDirs() {
	set := kadm.TopicsSet{}
	set.Add(f.name("in"), 0, 1)
	for _, dir := range must(f.admin.DescribeAllLogDirs(f.ctx, set)).Sorted() {
		saw := []any{}
		dir.Topics.Each(func(each kadm.DescribedLogDirPartition) {
			saw = append(saw, fmt.Sprint(each.Topic, " ", each.Partition, " ", each.Size, " ", each.OffsetLag, " ", each.IsFuture))
		})
		slices.SortFunc(saw, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		f.note("log dir", []any{
			dir.Broker, outcome(dir.Err), saw, dir.TotalBytes >= dir.UsableBytes, dir.UsableBytes > 0, dir.IsCordoned,
		})
	}
}

func (f franz) placement() {
	assign := func(topic string, brokers []int32) string {
		request := kadm.AlterPartitionAssignmentsReq{topic: {0: brokers}}
		answer := must(f.admin.AlterPartitionAssignments(f.ctx, request))
		return outcome(answer[topic][0].Err)
	}
	for _, brokers := range [][]int32{{1}, {7}, {1, 7}, {}, nil} {
		for _, label := range []string{"in", "absent"} {
			step := fmt.Sprint("put ", label, " on ", brokers, " cancel ", brokers == nil)
			f.note(step, assign(f.name(label), brokers))
		}
	}
	f.note("all reassignments", len(must(f.admin.ListPartitionReassignments(f.ctx, nil))))
	set := kadm.TopicsSet{}
	set.Add(f.name("in"), 0)
	f.note("its reassignments", len(must(f.admin.ListPartitionReassignments(f.ctx, set))))
	set.Add(f.name("absent"), 0)
	for _, how := range []kadm.ElectLeadersHow{kadm.ElectPreferredReplica, kadm.ElectLiveReplica} {
		elected := must(f.admin.ElectLeaders(f.ctx, how, set))
		f.note(fmt.Sprint("elect ", how), []string{
			outcome(elected[f.name("in")][0].Err), outcome(elected[f.name("absent")][0].Err),
		})
	}
}

func (f franz) cluster() {
	request := kmsg.NewPtrDescribeClusterRequest()
	request.IncludeClusterAuthorizedOperations = true
	cluster := must(request.RequestWith(f.ctx, f.client))
	f.note("cluster", []any{
		outcomeOf(cluster.ErrorCode), cluster.ControllerID, len(cluster.Brokers), cluster.ClusterAuthorizedOperations,
	})
	metadata := must(f.admin.BrokerMetadata(f.ctx))
	f.note("brokers", []any{metadata.Controller, metadata.Cluster == cluster.ClusterID, len(metadata.Brokers)})
	quorum := kmsg.NewPtrDescribeQuorumRequest()
	partition := kmsg.NewDescribeQuorumRequestTopicPartition()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, partition)
	quorum.Topics = append(quorum.Topics, topic)
	answer := must(quorum.RequestWith(f.ctx, f.client))
	for _, each := range answer.Topics[0].Partitions {
		f.note("quorum", []any{
			outcomeOf(answer.ErrorCode), outcomeOf(each.ErrorCode), each.LeaderID, len(each.CurrentVoters),
			each.CurrentVoters[0].ReplicaID, len(each.Observers), len(answer.Nodes),
		})
	}
}

func (f franz) features() {
	const feature = "transaction.version"
	versions := must(f.admin.ApiVersions(f.ctx))
	for _, broker := range versions.Sorted() {
		for _, each := range broker.Raw().FinalizedFeatures {
			if each.Name == feature {
				f.note("finalized", []any{each.MinVersionLevel, each.MaxVersionLevel})
			}
		}
	}
	update := func(name string, level int16, kind int8) string {
		wanted := kadm.FeatureUpdate{Feature: name, MaxVersionLevel: level, UpgradeType: kind}
		updated, err := f.admin.UpdateFeatures(f.ctx, true, wanted)
		if err == nil {
			err = updated.Error()
		}
		return outcome(err)
	}
	f.note("stay", update(feature, 2, 1))
	f.note("upgrade", update(feature, 9, 1))
	f.note("lower as an upgrade", update(feature, 1, 1))
	f.note("an unknown feature", update("no.such.feature", 1, 1))
}

// ofTransactions remembers by which of these a client makes its transactions: from
// transaction.version 2 on, partitions and groups are added by writing to them.
type ofTransactions struct {
	mutex sync.Mutex
	keys  map[string]bool
}

func (t *ofTransactions) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if name := kmsg.NameForKey(key); strings.Contains(name, "Txn") {
		t.keys[name] = true
	}
}

func (t *ofTransactions) sent() []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return slices.Sorted(maps.Keys(t.keys))
}

func (f franz) transactions() {
	sent := &ofTransactions{keys: map[string]bool{}}
	session := must(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(f.bootstrap),
		kgo.TransactionalID(f.name("transaction")),
		kgo.ConsumerGroup(f.name("group")),
		kgo.ConsumeTopics(f.name("in")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RequireStableFetchOffsets(),
		kgo.WithHooks(sent),
	))
	f.transform(session, "abort", kgo.TryAbort)
	f.transform(session, "commit", kgo.TryCommit)
	f.note("delete a group with members", f.deleteGroup("group"))
	session.Close()
	f.note("requests of transactions", sent.sent())
	f.afterTransactions()
	f.groups()
	f.fencing()
}

func (f franz) transform(session *kgo.GroupTransactSession, step string, how kgo.TransactionEndTry) {
	check(session.Begin())
	saw := []string{}
	for len(saw) < 3 {
		fetches := session.PollFetches(f.ctx)
		check(fetches.Err())
		fetches.EachRecord(func(each *kgo.Record) {
			saw = append(saw, string(each.Value))
			made := &kgo.Record{Topic: f.name("out"), Value: []byte(step + " " + string(each.Value))}
			session.Produce(f.ctx, made, func(_ *kgo.Record, err error) { check(err) })
		})
	}
	f.note(step+": consumed", saw)
	// To abort throws away what has not been sent.
	check(session.Client().Flush(f.ctx))
	committed, err := session.End(f.ctx, how)
	f.note(step+": ended", []any{committed, outcome(err)})
}

func (f franz) afterTransactions() {
	id := f.name("transaction")
	f.note("transaction", eventually(func() any {
		found := must(f.admin.DescribeTransactions(f.ctx, id))[id]
		return []any{outcome(found.Err), found.State, found.ProducerEpoch, found.Topics.Sorted().Topics()}
	}, []any{"NONE", "CompleteCommit", int16(2), []string(nil)}))
	listed := must(f.admin.ListTransactions(f.ctx, nil, nil))
	f.note("transactions", f.mine(listed.TransactionalIDs()))
	matching := must(f.admin.ListTransactionsByTxPattern(f.ctx, nil, nil, regexp.QuoteMeta(f.prefix)+".*act.*"))
	f.note("transactions by pattern", f.mine(matching.TransactionalIDs()))
	isolated := func(level kgo.IsolationLevel) any {
		return f.read("out", func(client *kgo.Client, until int64) any {
			saw := []string{}
			for next := int64(0); next < until; {
				fetches := client.PollFetches(f.ctx)
				check(fetches.Err())
				fetches.EachRecord(func(each *kgo.Record) {
					next = each.Offset + 1
					if !each.Attrs.IsControl() {
						saw = append(saw, fmt.Sprint(each.Offset, " ", string(each.Value)))
					}
				})
			}
			return saw
		}, kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	}
	f.note("read committed", isolated(kgo.ReadCommitted()))
	f.note("read uncommitted", isolated(kgo.ReadUncommitted()))
}

// read hands the work a reader of a topic's one partition, and the offset of its end.
func (f franz) read(label string, work func(*kgo.Client, int64) any, options ...kgo.Opt) any {
	ends := must(f.admin.ListCommittedOffsets(f.ctx, f.name(label)))
	end, _ := ends.Lookup(f.name(label), 0)
	start := map[string]map[int32]kgo.Offset{f.name(label): {0: kgo.NewOffset().AtStart()}}
	client := must(kgo.NewClient(append(options, kgo.SeedBrokers(f.bootstrap), kgo.ConsumePartitions(start))...))
	defer client.Close()
	return work(client, end.Offset)
}

func (f franz) groups() {
	group := f.name("group")
	f.note("group", eventually(func() any {
		found := must(f.admin.DescribeGroups(f.ctx, group))[group]
		return []any{outcome(found.Err), found.State, found.ProtocolType, found.Protocol, len(found.Members)}
	}, []any{"NONE", "Empty", "consumer", "", 0}))
	f.note("groups", f.mine(must(f.admin.ListGroups(f.ctx)).Groups()))
	for _, kind := range []string{"classic", "consumer"} {
		f.note("groups of type "+kind, f.mine(must(f.admin.ListGroupsByType(f.ctx, []string{kind})).Groups()))
	}
	f.note("offsets", f.offsets())
	lag := must(f.admin.Lag(f.ctx, group))[group]
	f.note("lag", []any{outcome(lag.Error()), lag.Lag.Total()})
	f.offsetsOfRecords()
	deleted := must(f.admin.DeleteOffsets(f.ctx, group, kadm.TopicsSet{f.name("in"): {0: {}, 7: {}}}))
	f.note("delete offsets", []string{outcome(deleted[f.name("in")][0]), outcome(deleted[f.name("in")][7])})
	f.note("offsets then", f.offsets())
	f.note("delete a group", f.deleteGroup("group"))
	f.note("delete an absent group", f.deleteGroup("group"))
	f.note("groups then", f.mine(must(f.admin.ListGroups(f.ctx)).Groups()))
}

func (f franz) offsetsOfRecords() {
	topic := f.name("in")
	listed := func(offsets kadm.ListedOffsets, err error) any {
		check(err)
		saw := []string{}
		offsets.Each(func(each kadm.ListedOffset) {
			saw = append(saw, fmt.Sprint(each.Partition, " ", each.Offset, " ", each.Timestamp, " ", outcome(each.Err)))
		})
		slices.Sort(saw)
		return saw
	}
	f.note("first offsets", listed(f.admin.ListStartOffsets(f.ctx, topic)))
	f.note("next offsets", listed(f.admin.ListEndOffsets(f.ctx, topic)))
	f.note("latest records", listed(f.admin.ListMaxTimestampOffsets(f.ctx, topic)))
	f.note("first local offsets", listed(f.admin.ListLocalLogStartOffsets(f.ctx, topic)))
	f.note("records after a time", listed(f.admin.ListOffsetsAfterMilli(f.ctx, firstTimestamp+1, topic)))
	request := kadm.OffsetForLeaderEpochRequest{}
	request.Add(topic, 0, 0)
	ends := must(f.admin.OffsetForLeaderEpoch(f.ctx, request))[topic][0]
	f.note("end of the leader's epoch", []any{outcome(ends.Err), ends.EndOffset})
}

// fencing is what befalls a producer whose name another one takes.
func (f franz) fencing() {
	begun := func() *kgo.Client {
		client := must(kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.TransactionalID(f.name("taken over"))))
		check(client.BeginTransaction())
		check(client.ProduceSync(f.ctx, &kgo.Record{Topic: f.name("out"), Value: []byte("x")}).FirstErr())
		return client
	}
	first, second := begun(), begun()
	defer first.Close()
	defer second.Close()
	sent := first.ProduceSync(f.ctx, &kgo.Record{Topic: f.name("out"), Value: []byte("too late")})
	f.note("the first produces", outcome(sent.FirstErr()))
	f.note("the first commits", outcome(first.EndTransaction(f.ctx, kgo.TryCommit)))
	f.note("the second commits", outcome(second.EndTransaction(f.ctx, kgo.TryCommit)))
}

func (f franz) deleteGroup(label string) string {
	deleted, err := f.admin.DeleteGroups(f.ctx, f.name(label))
	check(err)
	return outcome(deleted[f.name(label)].Err)
}

func (f franz) offsets() any {
	saw := []string{}
	for _, each := range must(f.admin.FetchOffsets(f.ctx, f.name("group"))).Sorted() {
		saw = append(saw, fmt.Sprint(each.Topic, " ", each.Partition, " ", each.At, " ", outcome(each.Err)))
	}
	return saw
}

func (f franz) codecs() {
	codecs := []kgo.CompressionCodec{
		kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	value := strings.Repeat("easily compressed ", 200)
	for number, codec := range codecs {
		client := must(kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.ProducerBatchCompression(codec)))
		made := &kgo.Record{Topic: f.name("codecs"), Value: []byte(value)}
		f.note(fmt.Sprint("compress ", number), must(client.ProduceSync(f.ctx, made).First()).Offset)
		client.Close()
	}
	f.note("compressed", f.read("codecs", func(client *kgo.Client, until int64) any {
		saw := []any{}
		for int64(len(saw)) < until {
			fetches := client.PollFetches(f.ctx)
			check(fetches.Err())
			fetches.EachRecord(func(each *kgo.Record) {
				saw = append(saw, []any{each.Attrs.CompressionType(), string(each.Value) == value})
			})
		}
		return saw
	}))
}

func (f franz) deletion() {
	topic := f.name("in")
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 1, -1)
	deleted := must(f.admin.DeleteRecords(f.ctx, offsets))[topic][0]
	f.note("delete records", []any{outcome(deleted.Err), deleted.LowWatermark})
	gone := func() string {
		answer := must(f.admin.DeleteTopics(f.ctx, topic))
		return outcome(answer[topic].Err)
	}
	f.note("delete a topic", gone())
	f.note("delete it again", eventually(func() any { return gone() }, "UNKNOWN_TOPIC_OR_PARTITION"))
	for _, each := range must(f.admin.DeleteTopics(f.ctx, f.name("out"), f.name("codecs"))) {
		f.note("delete another", outcome(each.Err))
	}
	f.note("topics then", eventually(func() any {
		return f.mine(must(f.admin.ListTopics(f.ctx)).Names())
	}, []string{}))
}
