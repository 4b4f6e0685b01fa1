package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type saramaRun struct {
	run
	client sarama.Client
	admin  sarama.ClusterAdmin
}

func saramaAdmin(r run) {
	client := must(sarama.NewClient([]string{r.bootstrap}, saramaConfig()))
	s := saramaRun{r, client, must(sarama.NewClusterAdminFromClient(client))}
	defer s.admin.Close()
	s.topics()
	s.topicConfigs()
	s.brokerConfigs()
	s.produce()
	s.logDirs()
	s.placement()
	s.cluster()
	s.transactions()
	s.groups()
	s.codecs()
	s.deletion()
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.AllowAutoTopicCreation = false
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func text(value string) *string { return &value }

func (s saramaRun) topics() {
	create := func(label string, partitions int32, factor int16, configs map[string]*string) string {
		detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: factor, ConfigEntries: configs}
		return outcome(s.admin.CreateTopic(s.name(label), detail, false))
	}
	s.note("create with too many replicas", create("in", 2, 3, nil))
	s.note("create with nonsense", create("in", 2, 1, map[string]*string{"retention.ms": text("x")}))
	s.note("create", create("in", 2, 1, map[string]*string{"max.message.bytes": text("500000")}))
	s.note("create again", create("in", 2, 1, nil))
	s.note("create another", create("out", 1, 1, nil))
	s.note("create a third", create("codecs", 1, 1, nil))
	s.note("grow", outcome(s.admin.CreatePartitions(s.name("in"), 3, nil, false)))
	s.note("shrink", outcome(s.admin.CreatePartitions(s.name("in"), 2, nil, false)))
	s.note("topics", eventually(s.listed, []string{"codecs 1 1", "in 3 1", "out 1 1"}))
}

// listed are the topics with all that is told of them, which is a request for each topic.
func (s saramaRun) listed() any {
	saw := []string{}
	for name, each := range must(s.admin.ListTopics()) {
		if label, mine := strings.CutPrefix(name, s.prefix); mine {
			saw = append(saw, fmt.Sprint(label, " ", each.NumPartitions, " ", each.ReplicationFactor))
		}
	}
	slices.Sort(saw)
	return saw
}

func (s saramaRun) values(kind sarama.ConfigResourceType, name string, keys ...string) []string {
	resource := sarama.ConfigResource{Type: kind, Name: name, ConfigNames: keys}
	saw := []string{}
	for _, each := range must(s.admin.DescribeConfig(resource)) {
		saw = append(saw, fmt.Sprint(each.Name, " ", each.Value, " ", each.Source, " ", each.Default))
	}
	slices.Sort(saw)
	return saw
}

func (s saramaRun) alter(kind sarama.ConfigResourceType, name string, configs map[string]*string) string {
	return outcome(s.admin.AlterConfig(kind, name, configs, false))
}

func (s saramaRun) topicConfigs() {
	topic, absent := s.name("in"), s.name("absent")
	seen := func(retention, segment string) any {
		return eventually(func() any {
			return s.values(sarama.TopicResource, topic, "retention.ms", "segment.bytes")
		}, []string{"retention.ms " + retention, "segment.bytes " + segment})
	}
	alter := func(name, key, value string) string {
		return s.alter(sarama.TopicResource, name, map[string]*string{key: text(value)})
	}
	s.note("alter one", alter(topic, "retention.ms", "90000000"))
	s.note("alter one: then", seen("90000000 Topic false", "1073741824 Default true"))
	s.note("alter another", alter(topic, "segment.bytes", "2000000"))
	s.note("alter another: then", seen("604800000 Default true", "2000000 Topic false"))
	s.note("alter to nonsense", alter(topic, "retention.ms", "x"))
	s.note("alter an unknown one", alter(topic, "no.such", "1"))
	s.note("alter an absent topic", alter(absent, "retention.ms", "1"))
	only := map[string]*string{"retention.ms": text("1")}
	s.note("validate", outcome(s.admin.AlterConfig(sarama.TopicResource, topic, only, true)))
	incremental := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms":  {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: text("80000000")},
		"segment.bytes": {Operation: sarama.IncrementalAlterConfigsOperationDelete},
	}
	for _, label := range []string{"in", "absent"} {
		err := s.admin.IncrementalAlterConfig(sarama.TopicResource, s.name(label), incremental, false)
		s.note("alter incrementally "+label, outcome(err))
	}
	s.note("alter incrementally: then", seen("80000000 Topic false", "1073741824 Default true"))
}

func (s saramaRun) brokerConfigs() {
	const key, broker = "compression.lz4.level", "1"
	seen := func(value string) any {
		return eventually(func() any {
			return s.values(sarama.BrokerResource, broker, key)
		}, []string{key + " " + value})
	}
	s.note("alter the broker", s.alter(sarama.BrokerResource, broker, map[string]*string{key: text("5")}))
	s.note("alter the broker: then", seen("5 DynamicBroker false"))
	s.note("alter what is read-only", s.alter(sarama.BrokerResource, broker, map[string]*string{"num.partitions": text("5")}))
	s.note("take it back", s.alter(sarama.BrokerResource, broker, map[string]*string{}))
	s.note("take it back: then", seen("9 Default true"))
}

func (s saramaRun) message(label, value string, number int) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{
		Topic: s.name(label), Key: sarama.StringEncoder("key"), Value: sarama.StringEncoder(value),
		Headers:   []sarama.RecordHeader{{Key: []byte("number"), Value: []byte{byte(number)}}},
		Timestamp: time.UnixMilli(firstTimestamp + int64(number)),
	}
}

func (s saramaRun) produce() {
	producer := must(sarama.NewSyncProducerFromClient(s.client))
	defer producer.Close()
	for number, value := range []string{"a", "b", "c"} {
		_, offset, err := producer.SendMessage(s.message("in", value, number))
		check(err)
		s.note("produce "+value, offset)
	}
	partitions := []int32{0}
	request := &sarama.DescribeProducersRequest{
		Topics: []sarama.DescribeProducersRequestTopic{{Name: s.name("in"), PartitionIndexes: partitions}},
	}
	for _, topic := range must(s.broker().DescribeProducers(request)).Topics {
		for _, each := range topic.Partitions[0].ActiveProducers {
			s.note("producer", []any{each.ProducerID >= 0, each.ProducerEpoch, each.LastSequence, each.LastTimestamp})
		}
	}
}

// broker is there for requests that the admin client does not have.
func (s saramaRun) broker() *sarama.Broker { return must(s.client.Controller()) }

func (s saramaRun) logDirs() {
	for broker, dirs := range must(s.admin.DescribeLogDirs([]int32{1})) {
		for _, dir := range dirs {
			saw := []string{}
			for _, topic := range dir.Topics {
				for _, each := range topic.Partitions {
					if topic.Topic == s.name("in") {
						saw = append(saw, fmt.Sprint(each.PartitionID, " ", each.Size, " ", each.OffsetLag, " ", each.IsTemporary))
					}
				}
			}
			slices.Sort(saw)
			s.note("log dir", []any{broker, outcomeOf(int16(dir.ErrorCode)), saw, dir.TotalBytes >= dir.UsableBytes})
		}
	}
}

func (s saramaRun) placement() {
	for _, brokers := range [][]int32{{1}, {7}, {1, 7}, {}, nil} {
		for _, label := range []string{"in", "absent"} {
			err := s.admin.AlterPartitionReassignments(s.name(label), [][]int32{brokers})
			s.note(fmt.Sprint("put ", label, " on ", brokers, " cancel ", brokers == nil), outcome(err))
		}
	}
	listed := must(s.admin.ListPartitionReassignments(s.name("in"), []int32{0}))
	s.note("reassignments", len(listed))
	for _, how := range []sarama.ElectionType{sarama.PreferredElection, sarama.UncleanElection} {
		for _, label := range []string{"in", "absent"} {
			elected := must(s.admin.ElectLeaders(how, map[string][]int32{s.name(label): {0}}))
			s.note(fmt.Sprint("elect ", how, " ", label), outcomeOf(int16(elected[s.name(label)][0].ErrorCode)))
		}
	}
}

func (s saramaRun) cluster() {
	brokers, controller, err := s.admin.DescribeCluster()
	s.note("brokers", []any{len(brokers), controller, outcome(err)})
	broker := s.broker()
	// What a client may do with the cluster was told in these versions only.
	for version := int16(8); version <= 10; version++ {
		found := must(broker.GetMetadata(&sarama.MetadataRequest{
			Version: version, Topics: []string{s.name("in")},
			IncludeClusterAuthorizedOperations: true, IncludeTopicAuthorizedOperations: true,
		}))
		s.note(fmt.Sprint("operations ", version), []any{
			found.ClusterAuthorizedOperations, found.Topics[0].TopicAuthorizedOperations, found.ControllerID,
		})
	}
	request := sarama.NewDescribeClusterRequest(sarama.MaxVersion)
	request.IncludeClusterAuthorizedOperations = true
	found := must(broker.DescribeCluster(request))
	s.note("cluster", []any{
		outcomeOf(int16(found.Err)), found.ControllerID, len(found.Brokers), found.ClusterAuthorizedOperations,
	})
	versions := must(broker.ApiVersions(&sarama.ApiVersionsRequest{
		Version: 4, ClientSoftwareName: "sarama", ClientSoftwareVersion: "1",
	}))
	for _, each := range versions.FinalizedFeatures {
		if each.Name == "transaction.version" {
			s.note("finalized", []any{each.MinVersionLevel, each.MaxVersionLevel})
		}
	}
	for _, level := range []int16{2, 9} {
		update := sarama.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: level}
		_, err := s.admin.UpdateFeatures([]sarama.FeatureUpdate{update})
		s.note(fmt.Sprint("update to ", level), outcome(err))
	}
}

// transform consumes three records, and transforms them twice: what is aborted, and what is not.
type transform struct {
	saramaRun
	producer sarama.SyncProducer
	done     context.CancelFunc
}

func (transform) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (transform) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (t transform) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	if claim.Partition() != 0 {
		<-session.Context().Done()
		return nil
	}
	read := []*sarama.ConsumerMessage{}
	for each := range claim.Messages() {
		if read = append(read, each); len(read) == 3 {
			break
		}
	}
	member := sarama.NewConsumerGroupMetadataFromSession(session, t.name("group"), nil)
	t.transform("abort", read, member, t.producer.AbortTxn)
	t.transform("commit", read, member, t.producer.CommitTxn)
	t.note("delete a group with members", outcome(t.admin.DeleteConsumerGroup(t.name("group"))))
	t.done()
	return nil
}

func (t transform) transform(
	step string, read []*sarama.ConsumerMessage, member *sarama.ConsumerGroupMetadata, end func() error,
) {
	check(t.producer.BeginTxn())
	saw := []string{}
	for number, each := range read {
		saw = append(saw, string(each.Value))
		_, _, err := t.producer.SendMessage(t.message("out", step+" "+string(each.Value), number))
		check(err)
	}
	t.note(step+": consumed", saw)
	check(t.producer.AddMessageToTxnWithGroupMetadata(read[len(read)-1], member, nil))
	t.note(step+": ended", outcome(end()))
}

func (s saramaRun) transactions() {
	config := saramaConfig()
	config.Producer.Transaction.ID = s.name("transaction")
	producer := must(sarama.NewSyncProducer([]string{s.bootstrap}, config))
	defer producer.Close()
	group := must(sarama.NewConsumerGroup([]string{s.bootstrap}, s.name("group"), config))
	ctx, done := context.WithCancel(s.ctx)
	check(group.Consume(ctx, []string{s.name("in")}, transform{s, producer, done}))
	check(group.Close())
	coordinator := must(s.client.TransactionCoordinator(s.name("transaction")))
	s.note("transaction", eventually(func() any {
		request := &sarama.DescribeTransactionsRequest{TransactionalIDs: []string{s.name("transaction")}}
		found := must(coordinator.DescribeTransactions(request)).TransactionStates[0]
		return []any{outcomeOf(int16(found.ErrorCode)), found.TransactionState, found.ProducerEpoch}
	}, []any{"NONE", "CompleteCommit", 0}))
	s.note("read committed", s.read("out", sarama.ReadCommitted, 3))
	s.note("read uncommitted", s.read("out", sarama.ReadUncommitted, 6))
}

func (s saramaRun) read(label string, level sarama.IsolationLevel, count int) []string {
	config := saramaConfig()
	config.Consumer.IsolationLevel = level
	consumer := must(sarama.NewConsumer([]string{s.bootstrap}, config))
	defer consumer.Close()
	partition := must(consumer.ConsumePartition(s.name(label), 0, sarama.OffsetOldest))
	defer partition.Close()
	saw := []string{}
	for len(saw) < count {
		select {
		case each := <-partition.Messages():
			headers, at := len(each.Headers), each.Timestamp.UnixMilli()
			saw = append(saw, fmt.Sprint(each.Offset, " ", string(each.Value), " ", headers, " ", at))
		case <-s.ctx.Done():
			check(s.ctx.Err())
		}
	}
	return saw
}

func (s saramaRun) groups() {
	group, topic := s.name("group"), s.name("in")
	s.note("group", eventually(func() any {
		found := must(s.admin.DescribeConsumerGroups([]string{group}))[0]
		return []any{outcomeOf(int16(found.Err)), found.State, found.ProtocolType, found.Protocol, len(found.Members)}
	}, []any{"NONE", "Empty", "consumer", "", 0}))
	s.note("groups", s.listedGroups())
	s.note("offsets", s.offsets())
	s.note("delete an offset", outcome(s.admin.DeleteConsumerGroupOffset(group, topic, 0)))
	s.note("delete an absent offset", outcome(s.admin.DeleteConsumerGroupOffset(group, topic, 7)))
	s.note("offsets then", s.offsets())
	s.note("delete a group", outcome(s.admin.DeleteConsumerGroup(group)))
	s.note("delete an absent group", outcome(s.admin.DeleteConsumerGroup(group)))
	s.note("groups then", s.listedGroups())
}

func (s saramaRun) listedGroups() []string {
	saw := []string{}
	for name, kind := range must(s.admin.ListConsumerGroups()) {
		saw = append(saw, name+" "+kind)
	}
	return s.mine(saw)
}

func (s saramaRun) offsets() any {
	topic := s.name("in")
	found := must(s.admin.ListConsumerGroupOffsets(s.name("group"), map[string][]int32{topic: {0, 1}}))
	saw := []string{}
	for partition, each := range found.Blocks[topic] {
		saw = append(saw, fmt.Sprint(partition, " ", each.Offset, " ", outcomeOf(int16(each.Err))))
	}
	slices.Sort(saw)
	return saw
}

func (s saramaRun) codecs() {
	codecs := []sarama.CompressionCodec{
		sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	for _, codec := range codecs {
		config := saramaConfig()
		config.Producer.Compression = codec
		producer := must(sarama.NewSyncProducer([]string{s.bootstrap}, config))
		_, offset, err := producer.SendMessage(s.message("codecs", strings.Repeat(codec.String()+" ", 20), 1))
		check(err)
		s.note("compress "+codec.String(), offset)
		check(producer.Close())
	}
	s.note("compressed", s.read("codecs", sarama.ReadCommitted, len(codecs)))
}

func (s saramaRun) deletion() {
	topic := s.name("in")
	s.note("delete records", outcome(s.admin.DeleteRecords(topic, map[int32]int64{0: 1})))
	s.note("first offset then", must(s.client.GetOffset(topic, 0, sarama.OffsetOldest)))
	gone := func() any { return outcome(s.admin.DeleteTopic(topic)) }
	s.note("delete a topic", gone())
	s.note("delete it again", eventually(gone, "UNKNOWN_TOPIC_OR_PARTITION"))
	s.note("delete another", outcome(s.admin.DeleteTopic(s.name("out"))))
	s.note("delete a third", outcome(s.admin.DeleteTopic(s.name("codecs"))))
	s.note("topics then", eventually(s.listed, []string{}))
}
