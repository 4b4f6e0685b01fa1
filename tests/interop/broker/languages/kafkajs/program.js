// What KafkaJS asks of a broker, and what it is answered: one JSON object a line,
// {"step": ..., "saw": ...}.
//
//   NODE_PATH=<kafkajs's node_modules> node program.js BOOTSTRAP PREFIX
//
// It has no log directories, elections, features or quorum, and no way to alter a config but that of
// AlterConfigs, which gives a resource all its configs at once.

'use strict'

const { setTimeout: pause } = require('node:timers/promises')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel, Partitioners } = require('kafkajs')

const PATIENCE_MS = 15_000
const PAUSE_MS = 20
const FIRST_TIMESTAMP = 1_700_000_000_000
const { TOPIC, BROKER } = ConfigResourceTypes

const [bootstrap, prefix] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'program', brokers: [bootstrap], logLevel: logLevel.NOTHING })
const admin = kafka.admin()
// It asks for half a minute whether a topic is there after all.
const impatientAdmin = kafka.admin({ retry: { retries: 0 } })
const named = label => prefix + label
const mine = names => names.filter(name => name.startsWith(prefix)).sort()

const note = (step, saw) => console.log(JSON.stringify({ step, saw }))

/** The protocol's name of what was refused, however deep KafkaJS wraps it. */
const nameOf = error => {
  const inner = error.errors?.[0] ?? error.groups?.[0]?.error ?? error.cause
  return error.type ?? (inner ? nameOf(inner) : error.name)
}

const outcome = async act => {
  try {
    await act()
    return 'NONE'
  } catch (error) {
    return nameOf(error)
  }
}

/** What is seen as soon as it is what was expected, or else what is seen at last. */
const eventually = async (ask, expected) => {
  const deadline = Date.now() + PATIENCE_MS
  let saw = await ask()
  while (JSON.stringify(saw) !== JSON.stringify(expected) && Date.now() < deadline) {
    await pause(PAUSE_MS)
    saw = await ask()
  }
  return saw
}

const topics = async () => {
  const create = (label, replicationFactor = 1, configs = {}) => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const topic = { topic: named(label), numPartitions: 2, replicationFactor, configEntries }
    return outcome(() => admin.createTopics({ topics: [topic] }))
  }
  note('create with too many replicas', await create('in', 3))
  note('create with nonsense', await create('in', 1, { 'retention.ms': 'x' }))
  note('create', await create('in', 1, { 'max.message.bytes': '500000' }))
  // It takes a topic that is there for one that it made.
  note('create again', await create('in'))
  note('create another', await create('out'))
  for (const count of [3, 2]) {
    const topicPartitions = [{ topic: named('in'), count }]
    note(`partitions ${count}`, await outcome(() => admin.createPartitions({ topicPartitions })))
  }
  note('topics', await eventually(async () => mine(await admin.listTopics()), [named('in'), named('out')]))
  const partitions = async () => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [named('in')] })
    return topics[0].partitions.map(each => [each.partitionId, each.leader, each.replicas, each.isr]).sort()
  }
  note('topic', await eventually(partitions, [0, 1, 2].map(each => [each, 1, [1], [1]])))
}

const values = async (type, name, ...configNames) => {
  const resources = [{ type, name, configNames }]
  const found = await admin.describeConfigs({ resources, includeSynonyms: true })
  const rows = found.resources[0].configEntries.map(each => [
    each.configName, each.configValue, each.configSource, each.isDefault, each.readOnly,
  ])
  return rows.sort()
}

const alter = (type, name, configs) => {
  const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
  return outcome(() => admin.alterConfigs({ validateOnly: false, resources: [{ type, name, configEntries }] }))
}

const topicConfigs = async () => {
  const seen = (retention, segment) =>
    eventually(() => values(TOPIC, named('in'), 'retention.ms', 'segment.bytes'), [
      ['retention.ms', ...retention, false],
      ['segment.bytes', ...segment, false],
    ])
  note('alter one', await alter(TOPIC, named('in'), { 'retention.ms': '90000000' }))
  note('alter one: then', await seen(['90000000', 1, false], ['1073741824', 5, true]))
  note('alter another', await alter(TOPIC, named('in'), { 'segment.bytes': '2000000' }))
  note('alter another: then', await seen(['604800000', 5, true], ['2000000', 1, false]))
  note('alter to nonsense', await alter(TOPIC, named('in'), { 'retention.ms': 'x' }))
  note('alter an unknown one', await alter(TOPIC, named('in'), { 'no.such': '1' }))
  note('alter an absent topic', await alter(TOPIC, named('absent'), { 'retention.ms': '1' }))
  note('describe an absent topic', await outcome(() => values(TOPIC, named('absent'), 'retention.ms')))
}

const brokerConfigs = async () => {
  const key = 'compression.lz4.level'
  const seen = (...expected) => eventually(() => values(BROKER, '1', key), [[key, ...expected, false]])
  note('alter the broker', await alter(BROKER, '1', { [key]: '5' }))
  note('alter the broker: then', await seen('5', 2, false))
  note('alter what is read-only', await alter(BROKER, '1', { 'num.partitions': '5' }))
  note('take it back', await alter(BROKER, '1', {}))
  note('take it back: then', await seen('9', 5, true))
}

const idempotent = {
  idempotent: true,
  maxInFlightRequests: 1,
  // Each message here says where it goes; without this, a warning would be printed.
  createPartitioner: Partitioners.DefaultPartitioner,
}

const produce = async () => {
  const producer = kafka.producer(idempotent)
  await producer.connect()
  for (const [number, value] of ['a', 'b', 'c'].entries()) {
    const timestamp = String(FIRST_TIMESTAMP + number)
    const message = { key: 'key', value, partition: 0, timestamp, headers: { number: String(number) } }
    const [sent] = await producer.send({ topic: named('in'), messages: [message], acks: -1 })
    note(`produce ${value}`, [sent.errorCode, sent.baseOffset])
  }
  const compressed = { key: 'key', value: 'easily compressed '.repeat(5), partition: 0 }
  const messages = [compressed, compressed]
  const [sent] = await producer.send({ topic: named('out'), messages, compression: CompressionTypes.GZIP })
  note('compress', [sent.errorCode, sent.baseOffset])
  await producer.disconnect()
}

const placement = async () => {
  for (const brokers of [[1], [7], [1, 7], [], null]) {
    for (const label of ['in', 'absent']) {
      const topics = [{ topic: named(label), partitionAssignment: [{ partition: 0, replicas: brokers }] }]
      const step = `put ${label} on ${JSON.stringify(brokers)}`
      note(step, await outcome(() => admin.alterPartitionReassignments({ topics })))
    }
  }
  note('all reassignments', await admin.listPartitionReassignments({}))
  const topics = [{ topic: named('in'), partitions: [0] }]
  note('its reassignments', await admin.listPartitionReassignments({ topics }))
}

const cluster = async () => {
  const found = await admin.describeCluster()
  note('cluster', [found.controller, found.brokers.map(each => each.nodeId), found.clusterId.length])
}

/** Consumes three records and transforms them twice: what is aborted, and what is not. */
const transactions = async () => {
  const groupId = named('group')
  const producer = kafka.producer({ ...idempotent, transactionalId: named('transaction') })
  await producer.connect()
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topics: [named('in')], fromBeginning: true })
  const read = []
  const done = new Promise((resolve, reject) => {
    const eachMessage = async ({ partition, message }) => {
      if (partition !== 0) return
      read.push([message.offset, message.value.toString(), message.timestamp, String(message.headers.number)])
      if (read.length === 3) transformTwice(producer, groupId, read).then(resolve, reject)
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await done
  note('delete a group with members', await outcome(() => admin.deleteGroups([groupId])))
  await consumer.disconnect()
  await producer.disconnect()
  note('read committed', await readAll(false, 5))
  note('read uncommitted', await readAll(true, 8))
}

const transformTwice = async (producer, consumerGroupId, read) => {
  note('consumed', read)
  for (const step of ['abort', 'commit']) {
    const transaction = await producer.transaction()
    const messages = read.map(([, value]) => ({ value: `${step} ${value}`, partition: 0 }))
    const [sent] = await transaction.send({ topic: named('out'), messages })
    const partitions = [{ partition: 0, offset: '3' }]
    await transaction.sendOffsets({ consumerGroupId, topics: [{ topic: named('in'), partitions }] })
    await transaction[step]()
    const expected = step === 'commit' ? '3' : '-1'
    note(`${step}: ended`, [sent.baseOffset, await eventually(() => offsetOf(0), expected)])
  }
}

const offsetOf = async partition => {
  const [found] = await admin.fetchOffsets({ groupId: named('group'), topics: [named('in')] })
  return found.partitions.find(each => each.partition === partition).offset
}

const readAll = async (readUncommitted, count) => {
  const consumer = kafka.consumer({ groupId: named(`reader ${readUncommitted}`), maxWaitTimeInMs: 100, readUncommitted })
  await consumer.connect()
  await consumer.subscribe({ topics: [named('out')], fromBeginning: true })
  const saw = []
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ message }) => {
      saw.push([message.offset, message.value.toString()])
      if (saw.length === count) resolve()
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  return saw
}

const groups = async () => {
  const described = async () => {
    const { groups } = await admin.describeGroups([named('group')])
    return groups.map(each => [each.errorCode, each.state, each.protocolType, each.protocol, each.members.length])
  }
  note('group', await eventually(described, [[0, 'Empty', 'consumer', '', 0]]))
  const listed = async () => mine((await admin.listGroups()).groups.map(each => `${each.groupId} ${each.protocolType}`))
  note('groups', await listed())
  for (const label of ['group', 'reader true', 'reader false', 'group'])
    note(`delete ${label}`, await outcome(() => admin.deleteGroups([named(label)])))
  note('groups then', await listed())
}

const deletion = async () => {
  const topic = named('in')
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
  const offsets = await admin.fetchTopicOffsets(topic)
  note('offsets', offsets.map(each => [each.partition, each.low, each.high]).sort())
  const remove = label => outcome(() => impatientAdmin.deleteTopics({ topics: [named(label)] }))
  note('delete a topic', await remove('in'))
  note('delete it again', await eventually(() => remove('in'), 'UNKNOWN_TOPIC_OR_PARTITION'))
  note('delete another', await remove('out'))
  note('topics then', await eventually(async () => mine(await admin.listTopics()), []))
}

const main = async () => {
  await Promise.all([admin.connect(), impatientAdmin.connect()])
  for (const part of [topics, topicConfigs, brokerConfigs, produce, placement, cluster, transactions, groups, deletion])
    await part()
  await Promise.all([admin.disconnect(), impatientAdmin.disconnect()])
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
