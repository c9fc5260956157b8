# frozen_string_literal: true

require_relative 'helper'
require 'digest/md5'
require 'tmpdir'

# Clients of memcached, SOCKS proxies and PostgreSQL, against scripted servers in pieces, and against real ones where these are quick
# to start.
class TestProtocols < PeltonTest
  # Plays a conversation: each entry is [what it expects, what it answers]. Everything is sent byte by byte.
  module Scripted
    def initialize(script, seen, closes = false)
      super()
      @script = script.dup
      @seen = seen
      @closes = closes
      @buffer = String.new
    end

    def receive_data(data)
      @seen << data
      @buffer << data
      while (expected, answer = @script.first) && (at = @buffer.index(expected))
        @buffer.slice!(0, at + expected.bytesize)
        @script.shift
        answer.each_char { |char| EM.next_tick { send_data(char) } }
      end
      EM.next_tick { close_connection_after_writing } if @closes && @script.empty?
    end
  end

  def scripted(script, closes: false)
    @seen = []
    serve(Scripted, script.map { |expected, answer| [expected.b, answer.b] }, @seen, closes)
  end

  # memcached

  def with_memcached
    Dir.mktmpdir do |directory|
      path = "#{directory}/socket"
      pid = spawn('memcached', '-u', 'root', '-s', path, '-m', '8', %i[out err] => File::NULL)
      deadline = Time.now + DEADLINE
      sleep(0.01) until File.socket?(path) || Time.now > deadline
      yield path
    ensure
      Process.kill('KILL', pid)
      Process.wait(pid)
    end
  end

  test 'memcached stores, returns and deletes' do
    seen = []
    large = Random.new(2).bytes(500_000)
    with_memcached do |path|
      run_reactor do
        # As with TCP, but on a path that nobody else has.
        cache = EM.connect(path, EM::P::Memcache, path)
        cache.set(:a, "one\r\nEND\r\n") { seen << :stored }
        cache.set('b', large)
        cache.get(:a) { |value| seen << value }
        cache.get(:a, :missing, :b) { |a, missing, b| seen << [a.size, missing, b == large] }
        cache.get_hash(:a, :missing) { |values| seen << values }
        cache.delete(:a) { seen << :deleted }
        cache.delete(:missing) { seen << :nothing }
        cache.set('with spaces', 'x', 1)
        cache.get('with spaces', :a) { |*values| seen << values; EM.stop }
      end
    end
    expected = [:stored, "one\r\nEND\r\n", [10, nil, true], { a: "one\r\nEND\r\n" }, :deleted, :nothing, ['x', nil]]
    assert_equal expected, seen
  end

  test 'answers of memcached may arrive in single bytes' do
    seen = []
    run_reactor do
      port = scripted([["get x y\r\n", "VALUE y 0 5\r\n\r\nEND\r\nEND\r\n"], ["set z 0 9 1\r\nv\r\n", "STORED\r\n"]])
      cache = EM::P::Memcache.connect('127.0.0.1', port)
      cache.get(:x, :y) { |x, y| seen << x << y }
      cache.set(:z, 'v', 9) { seen << :stored; EM.stop }
    end
    assert_equal [nil, "\r\nEND", :stored], seen
  end

  test 'unanswered commands are sent again when the server of memcached comes back' do
    seen = []
    connections = 0
    run_reactor do
      port = serve(Module.new do
        define_method(:post_init) { connections += 1 }
        define_method(:receive_data) do |_|
          connections == 1 ? close_connection : send_data("VALUE a 0 1\r\n1\r\nEND\r\n")
        end
      end)
      EM::P::Memcache.connect('127.0.0.1', port).get(:a) { |value| seen << value; EM.stop }
    end
    assert_equal ['1'], seen
    assert_equal 2, connections
  end

  test 'what is not an answer of memcached raises' do
    ["nonsense\r\n", "STORED\r\n", "VALUE a 0 1\r\nabcdef", "SERVER_ERROR out of memory\r\n", "END\r\nEND\r\n"].each do |answer|
      assert_raise(EM::P::Memcache::ParserError, answer) do
        run_reactor { EM::P::Memcache.connect('127.0.0.1', scripted([["get a\r\n", answer]])).get(:a) { |_| nil } }
      end
      assert_reactor_works
    end
    assert_raise(RuntimeError) { run_reactor { EM::P::Memcache.connect('127.0.0.1', closed_port) } }
    run_reactor do
      cache = EM::P::Memcache.connect('127.0.0.1', serve)
      assert_raise(ArgumentError) { cache.set('k' * 251, 'v') }
      assert_raise(ArgumentError) { cache.set('', 'v') }
      assert_raise(ArgumentError) { cache.get(:a) }
      EM.stop
    end
  end

  def closed_port
    server = TCPServer.new('127.0.0.1', 0)
    server.addr[1].tap { server.close }
  end

  # SOCKS

  class Through < EM::P::Socks4
    def initialize(host, port, events)
      super(host, port)
      @events = events
    end

    def post_init
      @events << :post_init
      send_data 'sup'
    end

    def receive_data(data)
      @events << data
      EM.stop if @events.join.end_with?('done')
    end

    def unbind
      @events << socks_error
      EM.stop
    end
  end

  test 'a connection goes through a SOCKS proxy, by address and by name' do
    {
      '10.1.2.3' => "\x04\x01\x1f\x90\x0a\x01\x02\x03\0".b,
      'example.org' => "\x04\x01\x1f\x90\0\0\0\x01\0example.org\0".b
    }.each do |host, request|
      events = []
      run_reactor do
        port = scripted([[request, "\0\x5a\0\0\0\0\0\0".b], ['sup', 'done']])
        EM.connect('127.0.0.1', port, Through, host, 8080, events)
      end
      assert_equal [:post_init, 'done'], [events.first, events[1..].first(4).join]
      assert_equal "#{request}sup".b, @seen.join
    end
  end

  test 'what follows the answer of the proxy is not lost' do
    events = []
    run_reactor do
      port = serve(Module.new { define_method(:receive_data) { |_| send_data "\0\x5a\0\0\0\0\0\0hello, done".b } })
      EM.connect('127.0.0.1', port, Through, '10.0.0.1', 1, events)
    end
    assert_equal [:post_init, 'hello, done'], events.first(2)
  end

  test 'a proxy that refuses closes the connection, with a reason' do
    { "\0\x5b\0\0\0\0\0\0" => /refused/, "\x05\0\0\0\0\0\0\0" => /answered with 0/ }.each do |answer, reason|
      events = []
      run_reactor { EM.connect('127.0.0.1', scripted([["\0", answer]]), Through, '10.0.0.1', 1, events) }
      assert_equal 1, events.size
      assert_match reason, events.first
    end
    ['', "a\0b", '1.2.3.400'].each do |host|
      assert_raise(ArgumentError) { run_reactor { EM.connect('127.0.0.1', serve, Through, host, 1, []) } }
    end
  end

  # PostgreSQL

  def message(type, body)
    [type, body.bytesize + 4].pack('aN') << body.b
  end

  def ready
    message('Z', 'I')
  end

  def field(name)
    "#{name}\0" << [0, 0, 25, -1, -1, 0].pack('NnNs>l>n')
  end

  test 'a query of PostgreSQL returns rows' do
    row = [2, 1, '1', -1].pack('nNa1l>')
    answer = message('T', [2].pack('n') << field('a') << field('b')) << message('D', row) << message('C', "SELECT 1\0") << ready
    seen = []
    run_reactor do
      port = scripted([["database\0things\0\0", message('R', [0].pack('N')) << message('S', "server_version\00015\0") << ready],
                       ["select 1\0", answer], ["nonsense\0", message('E', "SERROR\0C42601\0Msyntax error\0\0") << ready]])
      db = EM.connect('127.0.0.1', port, EM::P::Postgres3)
      db.connect('things', 'me').callback { |*status| seen << status }
      db.query('select 1').callback { |*status| seen << status }
      db.query('nonsense').callback { |*status| seen << status << [db.params]; EM.stop }
    end
    connected, first, second, params = seen
    assert_equal [true, []], connected
    assert_equal [true, [%w[1] + [nil]], 'SELECT 1', %w[a b]],
                 [first[0], first[1].rows, first[1].cmd_tag, first[1].fields.map(&:name)]
    assert_equal [false, nil, ['ERROR: syntax error (42601)']], [second[0], second[1], second[2].map(&:message)]
    assert_equal [{ 'server_version' => '15' }], params
  end

  test 'passwords of PostgreSQL are sent in the clear and as MD5' do
    greeting = message('R', [0].pack('N')) << ready
    md5 = "md5#{Digest::MD5.hexdigest("#{Digest::MD5.hexdigest('secretme')}salt")}"
    { [3].pack('N') => 'secret', "#{[5].pack('N')}salt" => md5 }.each do |kind, sent|
      seen = []
      run_reactor do
        port = scripted([["things\0\0", message('R', kind)], ["#{sent}\0", greeting]])
        EM.connect('127.0.0.1', port, EM::P::Postgres3).connect('things', 'me', 'secret').callback { |*s| seen << s; EM.stop }
      end
      assert_equal [[true, []]], seen
    end
  end

  test 'everything that waits for PostgreSQL fails when the connection ends, or the server talks nonsense' do
    {
      '' => /connection ended/, "\0\0\0\0\1" => /a message of 1 bytes/, message('?', '') => /type "\?"/,
      message('R', [7].pack('N')) => /not supported \(7\)/, message('R', "#{[10].pack('N')}OTHER\0\0") => /OTHER/,
      message('R', "#{[11].pack('N')}r=x,s=x,i=1") => /another session/, message('R', "#{[12].pack('N')}v=x") => /does not know/
    }.each do |answer, error|
      seen = []
      run_reactor do
        db = EM.connect('127.0.0.1', scripted([["things\0\0", answer]], closes: true), EM::P::Postgres3)
        db.connect('things', 'me').callback { |status, errors| seen << [status, errors.first.message] }
        db.query('select 1').callback do |status, result, errors|
          seen << [status, result, errors.first.message]
          db.query('select 2').callback { |*late| seen << late.first; EM.stop }
        end
      end
      assert_equal [false, false, false], [seen[0][0], seen[1][0], seen[2]], answer.inspect
      assert_match error, seen[0][1]
      assert_match error, seen[1][2]
    end
  end
end
