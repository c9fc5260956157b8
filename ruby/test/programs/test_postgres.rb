# frozen_string_literal: true

require_relative '../helper'
require 'etc'
require 'fileutils'
require 'tmpdir'

# The client of PostgreSQL, against a server.
class TestPostgres < PeltonTest
  PROGRAMS = Dir['/usr/lib/postgresql/*/bin'].max

  def setup
    @directory = Dir.mktmpdir
    # The server refuses to run as root.
    FileUtils.chown('postgres', nil, @directory) if Process.uid.zero?
    File.write("#{@directory}/password", 'secret')
    File.chmod(0o644, "#{@directory}/password")
    run_as_server("#{PROGRAMS}/initdb -D #{@directory}/data -U me --pwfile=#{@directory}/password -A scram-sha-256")
    run_as_server("#{PROGRAMS}/pg_ctl -D #{@directory}/data -o '-k #{@directory} -c listen_addresses=' -w start")
  end

  def teardown
    super
    run_as_server("#{PROGRAMS}/pg_ctl -D #{@directory}/data -m immediate stop")
  ensure
    FileUtils.rm_rf(@directory)
  end

  def run_as_server(command)
    command = ['su', 'postgres', '-c', command] if Process.uid.zero?
    assert system(*command, %i[out err] => File::NULL), command.inspect
  end

  def connect
    EM.connect_unix_domain("#{@directory}/.s.PGSQL.5432", EM::P::Postgres3)
  end

  test 'queries are answered in order, and errors do not end the session' do
    seen = []
    run_reactor do
      db = connect
      db.connect('postgres', 'me', 'secret').callback do |status, _|
        seen << status
        db.query("select 1 as one, null as n, 'ü' as x").callback { |s, r, _| seen << [s, r.rows, r.fields.map(&:name), r.cmd_tag] }
        db.query('nonsense').callback { |s, r, e| seen << [s, r, e.first.values['C']] }
        db.query('copy (select 1) to stdout').callback { |s, r, _| seen << [s, r.cmd_tag] }
        db.query('').callback { |s, r, _| seen << [s, r.cmd_tag] }
        db.query('select repeat($$x$$, 1000000)').callback { |_, r, _| seen << r.rows[0][0].size; db.terminate }
      end
      db.define_singleton_method(:unbind) { |reason = nil| super(reason); EM.stop }
    end
    expected = [true, [true, [['1', nil, 'ü'.b]], %w[one n x], 'SELECT 1'], [false, nil, '42601'], [true, 'COPY 1'], [true, ''], 1_000_000]
    assert_equal expected, seen
  end

  test 'a wrong password is refused' do
    seen = nil
    run_reactor { connect.connect('postgres', 'me', 'wrong').callback { |status, errors| seen = [status, errors.first.values['C']]; EM.stop } }
    assert_equal [false, '28P01'], seen
  end
end
